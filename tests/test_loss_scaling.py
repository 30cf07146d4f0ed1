"""Loss scales, fixed and dynamic, of our `LossScaleOptimizer` and of Keras's."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.compare import assert_close, assert_same
from tests.helpers.options import (
    CASE,
    LOSS_SCALES,
    RESTING,
    Expected,
    dense_gradients,
    in_modes,
    initial,
    scale_of,
    scaled_by,
)
from tests.helpers.stepping import BACKEND, Rows, Runner, eager_and_compiled, to_numpy

every_loss_scale = pytest.mark.parametrize("scale_with", LOSS_SCALES.values(), ids=LOSS_SCALES)


@every_loss_scale
@in_modes(eager=True)
def test_loss_scale_optimizer(case, mode, scale_with):
    """Finite steps are those without a loss scale; a step that overflows changes nothing."""
    if BACKEND == "jax" and mode == "eager" and scale_with is LOSS_SCALES["stock"]:
        pytest.skip("Keras's own `apply` leaks tracers on JAX; it is for `stateless_apply`")
    scaled = scale_with(case.make(), initial_scale=1024.0, dynamic_growth_steps=3)
    runner, plain = Runner(scaled, initial(), mode), Runner(case.make(), initial(), mode)
    plan = dense_gradients(6)

    for grads in plan[:2]:
        runner.step(scaled_by(grads, 1024))
        plain.step(grads)
    assert scale_of(scaled) == 1024

    for bad in (np.inf, np.nan):
        broken = scaled_by(plan[2], 1024)
        broken["layer/kernel"][1, 1] = bad
        before, scale = runner.snapshot(), scale_of(scaled)
        runner.step(broken)
        after = runner.snapshot()
        own = len(runner.variables) + len(scaled._variables)  # the counter and the scale change
        assert_same(before[: len(runner.variables)], after[: len(runner.variables)])
        assert_same(before[own:], after[own:])
        assert scale_of(scaled) == scale / 2
    assert int(to_numpy(scaled.iterations)) == 2

    for grads in plan[3:6]:
        assert scale_of(scaled) == 256
        runner.step(scaled_by(grads, 256))
        plain.step(grads)
    assert scale_of(scaled) == 512  # three finite steps in a row
    for path, value in plain.values.items():
        assert_close(runner.values[path], value, 1e-7, path)
    if case.sparse == "rows":
        table = runner.values["table/embeddings"]
        assert np.array_equal(table[RESTING], initial()["table/embeddings"][RESTING])


@every_loss_scale
@pytest.mark.parametrize("options", ({"gradient_accumulation_steps": 2}, {"global_clipnorm": 1.0}))
def test_loss_scale_optimizer_around_other_options(options, scale_with):
    case = CASE["LazyAdam"]
    scaled = scale_with(case.make(**options), initial_scale=64.0)
    runner = Runner(scaled, initial(), "compiled")
    expected = Expected(case, initial(), **options)
    plan = dense_gradients(4)
    broken = {**plan[0], "layer/bias": np.full(5, np.inf, "float32")}
    for grads in plan:
        runner.step(scaled_by(grads, scale_of(scaled)))
        # also in the middle of an accumulation
        runner.step(broken)
        rows = {p: expected._touched(p, g) for p, g in grads.items()}
        expected.step(rows)
    for path, value in runner.values.items():
        assert_close(value, expected.x[path], 4e-6, path)


@eager_and_compiled
def test_loss_scale_optimizer_with_row_gradients(mode):
    """One of the given rows has a value that is not finite."""
    case = CASE["LazyAdam"]
    scaled = keras_tfopt.LossScaleOptimizer(case.make(), initial_scale=16.0)
    runner = Runner(scaled, {"embeddings": initial()["table/embeddings"]}, mode)
    expected = Expected(case, {"embeddings": initial()["table/embeddings"]})
    width = runner.values["embeddings"].shape[1]
    for number, row in enumerate(([1, 3, 1], [2, 3, 3], [1, 1, 1])):
        values = np.random.default_rng(number).normal(size=(3, width)).astype("float32")
        runner.step({"embeddings": Rows(scale_of(scaled) * values, row)})
        expected.step({"embeddings": Rows(values, row)})
        values[1, 0] = np.inf
        before = runner.values["embeddings"].copy()
        runner.step({"embeddings": Rows(values, row)})
        assert np.array_equal(runner.values["embeddings"], before)
    assert scale_of(scaled) == 2.0
    assert_close(runner.values["embeddings"], expected.x["embeddings"], 4e-6, "embeddings")


def test_state_of_a_loss_scale_optimizer_may_be_loaded_before_it_is_built():
    def make():
        inner = keras_tfopt.MovingAverage(CASE["LazyAdam"].make())
        return keras_tfopt.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=3)

    def stores(optimizer):
        chain = [optimizer, optimizer.inner_optimizer, optimizer.inner_optimizer.inner_optimizer]
        return [(one, {}) for one in chain]

    plan = dense_gradients(5)
    runner = Runner(make(), initial(), "eager")
    for grads in plan[:4]:
        runner.step(scaled_by(grads, scale_of(runner.optimizer)))
    assert scale_of(runner.optimizer) == 128
    saved = stores(runner.optimizer)
    for one, store in saved:
        one.save_own_variables(store)
    other = make()
    for (one, _), (_, store) in zip(stores(other), saved, strict=True):
        one.load_own_variables(store)
    again = Runner(other, runner.values, "eager")
    for one in (runner, again):
        one.step(scaled_by(plan[4], 128))
    assert_same(runner.snapshot(), again.snapshot())


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    (
        ("initial_scale", 0, r"\(0, inf\)"),
        ("initial_scale", "1", r"\(0, inf\)"),
        ("dynamic_growth_steps", 0, ">= 1"),
        ("inner_optimizer", keras_tfopt.LossScaleOptimizer("sgd"), "goes around an optimizer once"),
        ("inner_optimizer", 3, "keras.optimizers.Optimizer"),
    ),
)
def test_loss_scale_optimizer_refuses(name, value, allowed):
    with pytest.raises((TypeError, ValueError), match=allowed) as caught:
        keras_tfopt.LossScaleOptimizer(**{"inner_optimizer": "sgd", name: value})
    assert name in str(caught.value) or "LossScaleOptimizer" in str(caught.value)


def test_a_loss_scale_factor_is_applied_to_the_loss():
    optimizer = keras_tfopt.Momentum(loss_scale_factor=8.0)
    assert float(to_numpy(optimizer.scale_loss(keras.ops.convert_to_tensor(3.0)))) == 24.0
    wrapped = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    assert optimizer.loss_scale_factor is None  # else the loss would be scaled twice
    assert float(to_numpy(wrapped.scale_loss(keras.ops.convert_to_tensor(3.0)))) == 12.0


@pytest.mark.spread
def test_a_loss_scale_that_an_earlier_keras_configured():
    """Its configuration had options of the base class, with their defaults."""
    config = keras_tfopt.LossScaleOptimizer(keras_tfopt.Momentum(0.5), 4.0).get_config()
    old = {"clipnorm": None, "ema_momentum": 0.99, "use_ema": False, "dynamic": True}
    again = keras_tfopt.LossScaleOptimizer.from_config({**config, **old})
    assert again.get_config() == config and again.initial_scale == 4.0
    with pytest.raises(TypeError, match="clipnorm.* belongs to the optimizer inside"):
        keras_tfopt.LossScaleOptimizer.from_config({**config, "clipnorm": 1.0})


@pytest.mark.parametrize("inner", [keras.optimizers.SGD, keras_tfopt.Momentum])
def test_loss_scaling_of_keras_is_left_alone(inner):
    optimizer = keras.optimizers.LossScaleOptimizer(inner(0.1))
    optimizer.build([keras.Variable(np.ones((4, 2)), name="embeddings")])
    methods = set(dir(keras.optimizers.LossScaleOptimizer))
    assert not {n for n in vars(optimizer) if callable(getattr(optimizer, n))} & methods
