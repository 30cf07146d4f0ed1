"""GGT keeps products of the gradients in its window, which must not drift."""

import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import Runner
from tests.reference.ggt import GGT as Reference

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread

START = {"a/kernel": np.zeros((40, 3), "float32"), "b/bias": np.zeros(7, "float32")}


def gradients_of(step):
    """Return gradients whose size sometimes changes by 10,000: remains of old ones would show."""
    rng = np.random.default_rng(step)
    size = np.float32(10.0 ** (-4 + step // 50 % 5))
    return {path: size * rng.normal(size=x.shape).astype("float32") for path, x in START.items()}


def test_without_a_ridge_a_window_of_equal_gradients_has_finite_steps():
    """Only one singular value is not zero, and the part outside of the window is left out."""
    ends = []
    for ridge in (0.0, 1e-12):
        runner = Runner(keras_tfopt.GGT(1e-2, window=3, svd_epsilon=ridge), START, "compiled")
        for _ in range(4):
            runner.step({path: np.ones_like(x) for path, x in START.items()})
        ends.append(runner.values)
    for path, value in ends[0].items():
        assert np.all(np.isfinite(value)) and np.any(value != START[path])
        np.testing.assert_allclose(value, ends[1][path], rtol=1e-4)


@pytest.mark.slow
def test_the_products_of_the_window_do_not_drift_in_a_thousand_steps():
    runner = Runner(keras_tfopt.GGT(1e-3, window=10, svd_epsilon=1e-4), START, "compiled")
    reference = Reference(1e-3, window=10, svd_epsilon=1e-4)
    x = {path: value.astype("float64") for path, value in START.items()}
    state = reference.start(x)
    for step in range(1, 1001):
        grads = gradients_of(step)
        runner.step(grads)
        before = x
        x, state = reference.advance(
            {path: g.astype("float64") for path, g in grads.items()}, x, state, step
        )
        if step % 97 and step < 990:
            continue
        slots, exact = runner.slots[None], state[None]
        buffer = slots["grad_buffer"].astype("float64")
        # Each product is of this window: rounded once, however many steps there have been.
        lengths = np.linalg.norm(buffer, axis=1)
        error = np.abs(slots["gram"] - buffer @ buffer.T) / np.outer(lengths, lengths)
        assert np.max(error) < 1e-5, step
        np.testing.assert_allclose(
            buffer, exact["grad_buffer"], rtol=1e-3, atol=1e-6 * lengths.max()
        )
        for path, value in runner.values.items():
            assert np.all(np.isfinite(value)), path
    assert any(np.any(x[path] != before[path]) for path in x)
    for path, value in runner.values.items():
        np.testing.assert_allclose(value, x[path], rtol=1e-3, atol=1e-3 * np.abs(x[path]).max())
