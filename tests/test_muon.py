"""Muon: matrices of kernels, several of them in one product, another rule for other variables."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine.step import stacking
from tests.helpers.stepping import Rows, Runner, every_mode

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread("torch")

PLAIN = dict(learning_rate=1.0, momentum=0.0, nesterov=False, scaling="original", others=None)


def moved(shapes, grads=None, mode="eager", **arguments):
    """Return {path: how far one step moves the variable}, and the gradients."""
    normal = np.random.default_rng(0).normal
    grads = grads or {path: normal(size=shape) for path, shape in shapes.items()}
    optimizer = keras_tfopt.Muon(**{**PLAIN, **arguments})
    runner = Runner(optimizer, {path: np.zeros(shape) for path, shape in shapes.items()}, mode)
    runner.step(grads)
    return {path: -value for path, value in runner.values.items()}, grads


def test_singular_values_come_near_one():
    x, _ = moved({"kernel": (6, 4)})
    values = np.linalg.svd(x["kernel"], compute_uv=False)
    assert 0.6 < values.min() and values.max() < 1.3


@every_mode
def test_equal_shapes_together_are_the_same_as_each_alone(mode):
    shapes = {"a": (3, 5), "b": (3, 5), "c": (5, 3), "d": (3, 5)}
    together, grads = moved(shapes, mode=mode)
    for path, shape in shapes.items():
        alone, _ = moved({path: shape}, {path: grads[path]}, mode)
        np.testing.assert_allclose(together[path], alone[path], atol=2e-5)


def test_kernels_are_matrices_of_their_last_axis():
    conv, grads = moved({"kernel": (2, 2, 3, 4)})
    matrix, _ = moved({"kernel": (12, 4)}, {"kernel": grads["kernel"].reshape(12, 4)})
    np.testing.assert_allclose(conv["kernel"].reshape(12, 4), matrix["kernel"], atol=2e-5)


@pytest.mark.parametrize(("axes", "shape"), [(1, (4, 2, 3)), ([0, 2], (2, 4, 2, 3))])
def test_stacked_kernels_are_matrices_of_their_own(axes, shape):
    x, grads = moved({"query/kernel": shape}, stack_axes={"query": axes})
    axes = [axes] if isinstance(axes, int) else axes
    stacked = np.moveaxis(grads["query/kernel"], axes, range(len(axes))).reshape(-1, 4, 3)
    ours = np.moveaxis(x["query/kernel"], axes, range(len(axes))).reshape(-1, 4, 3)
    for one, g in zip(ours, stacked, strict=True):
        alone, _ = moved({"kernel": (4, 3)}, {"kernel": g})
        np.testing.assert_allclose(one, alone["kernel"], atol=2e-5)


@pytest.mark.parametrize("norm", ["spectral", "schatten", "aol"])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_singular_values_after_division_are_at_most_one(norm, shape):
    """With coefficients 1, 0, 0 the iteration changes nothing."""
    x, _ = moved(
        {"kernel": shape}, norm=norm, scaling=1 / 6**0.5, ns_steps=1, ns_coefficients=[1, 0, 0]
    )
    largest = np.linalg.svd(x["kernel"], compute_uv=False).max()
    lowest = 1 - 1e-5 if norm == "spectral" else 0.8
    assert lowest < largest < 1 + 1e-6


def test_adaptive_steps_have_the_size_of_each_gradient():
    normal = np.random.default_rng(0).normal
    first, second = normal(size=(3, 4)), 10 * normal(size=(3, 4))
    grads = {"kernel": np.stack([first, second])}
    x, _ = moved(
        {"kernel": (2, 3, 4)}, grads, adaptive=True, stack_axes={"kernel": 0}, norm="spectral"
    )
    for one, g in zip(x["kernel"], (first, second), strict=True):
        whole, total = np.linalg.norm(one, 2), np.linalg.norm(g, "nuc")
        assert 0.6 * 0.6 < whole / total < 1.3 * 1.3


def test_coefficients_are_given_for_every_iteration():
    rows = [[3.0, -4.0, 1.8]] * 3
    with pytest.raises(ValueError, match=r"`ns_coefficients`.*Received: .*, and ns_steps=5"):
        keras_tfopt.Muon(ns_coefficients=rows)
    grads = {"kernel": np.random.default_rng(1).normal(size=(4, 3))}
    each, _ = moved({"kernel": (4, 3)}, grads, ns_coefficients=rows, ns_steps=3)
    all_, _ = moved({"kernel": (4, 3)}, grads, ns_coefficients=rows[0], ns_steps=3)
    np.testing.assert_array_equal(each["kernel"], all_["kernel"])
    optimizer = keras_tfopt.Muon(ns_coefficients=rows, ns_steps=3)
    assert keras_tfopt.Muon.from_config(optimizer.get_config()).ns_coefficients == rows


def test_products_in_bfloat16_are_near():
    exact, grads = moved({"kernel": (4, 6)})
    near, _ = moved({"kernel": (4, 6)}, grads, products="bfloat16")
    # Five iterations each enlarge a rounding of 2**-8 up to 3.4 times if singular values are small.
    # Entries are up to 1.1 here. Measured errors are 0.06 to 0.13, depending on the backend.
    assert 0 < np.max(np.abs(exact["kernel"] - near["kernel"])) < 0.2


def test_one_schedule_and_one_norm_for_all():
    adam = keras_tfopt.GradientDescent(0.25)
    optimizer = keras_tfopt.Muon(0.5, others=adam, global_clipnorm=1.0)
    assert optimizer.get_config()["others_factor"] == 0.5
    runner = Runner(optimizer, {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}, "eager")
    grads = {"kernel": np.array([[3.0, 0.0], [0.0, 0.0]]), "bias": np.array([0.0, 4.0])}
    runner.step(grads)
    np.testing.assert_allclose(runner.values["bias"], [0, -0.25 * 0.8], rtol=1e-6)
    optimizer.learning_rate = 0.05
    runner.step(grads)
    np.testing.assert_allclose(runner.values["bias"], [0, -0.275 * 0.8], rtol=1e-6)


def test_weight_decay_of_others_is_their_own():
    optimizer = keras_tfopt.Muon(
        0.5, others=keras_tfopt.Adam(0.25, weight_decay=0.1), weight_decay=0.2
    )
    runner = Runner(optimizer, {"kernel": np.ones((2, 2)), "bias": np.ones(2)}, "eager")
    runner.step({"kernel": np.zeros((2, 2)), "bias": np.zeros(2)})
    np.testing.assert_allclose(runner.values["kernel"], 1 - 0.5 * 0.2, rtol=1e-6)
    np.testing.assert_allclose(runner.values["bias"], 1 - 0.25 * 0.1, rtol=1e-6)


def test_others_may_be_adam_w():
    adam_w = keras_tfopt.AdamW(0.25, weight_decay=0.1, beta_1=0.8, scale_by_learning_rate=True)
    optimizer = keras_tfopt.Muon(0.5, others=adam_w)
    adam = keras_tfopt.Muon(0.5, others=keras_tfopt.Adam(0.25, 0.8, weight_decay=0.1))
    start = {"kernel": np.ones((2, 2)), "bias": np.ones(2)}
    grads = {path: np.full_like(value, 0.3) for path, value in start.items()}
    runners = [Runner(one, start, "eager") for one in (optimizer, adam)]
    for runner in runners:
        runner.step(grads)
    np.testing.assert_array_equal(*(runner.values["bias"] for runner in runners))
    again = keras_tfopt.Muon.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    for refused in (
        keras_tfopt.AdamW(0.25, weight_decay=0.1),
        keras_tfopt.AdamW(
            0.25, weight_decay=0.1, decay_variables="bias", scale_by_learning_rate=True
        ),
        keras_tfopt.DecoupledWeightDecay("sgd", 0.1, scale_by_learning_rate=True),
    ):
        with pytest.raises(ValueError, match=r"`others` must decay.*scale_by_learning_rate=True"):
            keras_tfopt.Muon(0.5, others=refused)


@every_mode
def test_row_gradients_go_to_the_other_rule(mode):
    optimizer = keras_tfopt.Muon(0.1, others="lazy_adam")
    start = {"table/embeddings": np.ones((5, 2)), "kernel": np.ones((5, 2))}
    runner = Runner(optimizer, start, mode)
    rows = Rows(np.ones((1, 2)), np.array([3], "int32"))
    for _ in range(2):
        runner.step({"table/embeddings": rows, "kernel": rows})
    touched = [3]
    assert list(np.flatnonzero((runner.values["table/embeddings"] != 1).any(1))) == touched
    assert np.isfinite(runner.values["kernel"]).all() and (runner.values["kernel"][3] != 1).all()


def test_scalars_and_vectors_need_another_rule():
    variables = [keras.Variable(np.ones(3), name="bias"), keras.Variable(np.ones((2, 2)))]
    with pytest.raises(ValueError, match=r"Muon\(others=keras_tfopt.NadamW\(\)\).*\['bias'\]"):
        keras_tfopt.Muon(others=None).build(variables)
    assert keras_tfopt.Muon(others=None).slot_names == ()


@pytest.mark.parametrize("axes", [2, [0]])
def test_stack_axes_must_leave_a_matrix(axes):
    with pytest.raises(ValueError, match="`stack_axes` must leave two axes"):
        moved({"kernel": (2, 3)}, stack_axes={"kernel": axes})


def test_a_schedule_needs_a_factor_for_the_other_rule():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    with pytest.raises(ValueError, match="`others_factor` must say"):
        keras_tfopt.Muon(schedule, others=keras_tfopt.Adam())
    keras_tfopt.Muon(schedule, others=keras_tfopt.Adam(), others_factor=0.5)
    keras_tfopt.Muon(schedule)


def test_is_saved_with_its_other_rule():
    optimizer = keras_tfopt.Muon(0.02, others=keras_tfopt.Adam(3e-4, 0.8), stack_axes={"q": (0, 1)})
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert again.others.beta_1 == 0.8 and again.others_factor == pytest.approx(0.015)


@every_mode
def test_large_matrices_of_equal_shape_move_as_each_alone(mode, monkeypatch):
    shapes = {"a": (300, 250), "b": (300, 250)}
    one_by_one, grads = moved(shapes, mode=mode)
    monkeypatch.setattr(stacking, "MOST_ON_CPU", np.inf)
    together, _ = moved(shapes, grads, mode)
    for path, shape in shapes.items():
        alone, _ = moved({path: shape}, {path: grads[path]}, mode)
        np.testing.assert_allclose(together[path], alone[path], atol=2e-5)
        np.testing.assert_allclose(one_by_one[path], alone[path], atol=2e-5)
