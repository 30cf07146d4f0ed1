"""SOAP: merged kernels, intervals, and a decomposition that fails."""

import numpy as np
import pytest
from keras import ops

import keras_tfopt
from integration import recordings
from keras_tfopt.rules.eigenbases import eigenbasis
from tests.helpers.compare import assert_close
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import Runner

MODERN = GOLDEN / "modern"


def recorded(name):
    (case,) = recordings.select(MODERN, name, quirks=True).cases
    return case


@pytest.mark.parametrize(
    "mode", [pytest.param("eager", marks=pytest.mark.spread("torch")), "compiled"]
)
def test_merged_kernels_equal_the_original_with_reordered_axes(mode):
    case = recorded("SOAP__merge_dims")
    order = (3, 2, 0, 1)  # output and input channels, height, width
    start = {"conv": case.arrays["init/conv"].transpose(order)}
    kwargs = case.entry["kwargs"]
    optimizer = keras_tfopt.SOAP(
        kwargs["lr"],
        beta_1=kwargs["beta1"],
        beta_2=kwargs["beta2"],
        precondition_frequency=2,
        max_precond_dim=10,
        merge_dims=True,
    )
    runner = Runner(optimizer, start, mode)
    decay = 1.0
    for step in case.steps:
        if step > 1:  # the original decays after each step but the first
            decay = 1 - kwargs["lr"] * case.entry["defaults"]["weight_decay"]
        runner.step({"conv": case.gradient("conv", step).transpose(order)})
        runner.variables[0].assign(runner.variables[0] * decay)
        expected = case.arrays[f"var/{step}/conv"].transpose(order)
        assert_close(runner.values["conv"], expected, 1e-4, f"step {step}")
        assert_close(
            runner.slots["conv"]["GG_1"], case.arrays[f"slot/{step}/conv/GG_1"], 1e-4, "GG"
        )


@pytest.mark.spread
@pytest.mark.parametrize("name", ["block", "frequency"])
def test_zero_is_refused(name):
    argument = {"block": "max_precond_dim", "frequency": "precondition_frequency"}[name]
    with pytest.raises(ValueError, match=f"`{argument}` must be an integer >= 1. Received: 0"):
        keras_tfopt.SOAP(**{argument: 0})


def test_no_basis_is_renewed_between_intervals():
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(size=(4, 3))}
    runner = Runner(keras_tfopt.SOAP(0.1, precondition_frequency=3), start, "eager")
    bases = []
    for _ in range(7):
        runner.step({"kernel": rng.normal(size=(4, 3)).astype("float32")})
        bases.append(runner.slots["kernel"]["Q_0"])
    changed = [not np.array_equal(a, b) for a, b in zip(bases, bases[1:])]
    assert changed == [False, False, True, False, False, True]


@pytest.mark.backends("torch", reason="decompositions of other backends do not fail")
def test_a_decomposition_that_fails_in_float32_is_made_in_float64(monkeypatch):
    import torch

    exact = torch.linalg.eigh

    def failing(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return exact(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    total = ops.convert_to_tensor([[2.0, 1.0], [1.0, 2.0]])
    basis = eigenbasis(total)
    assert basis.dtype == torch.float32
    np.testing.assert_allclose(ops.convert_to_numpy(basis) ** 2, 0.5, rtol=1e-6)
    with pytest.raises(torch.linalg.LinAlgError):
        monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: failing(matrix.float()))
        eigenbasis(total)
