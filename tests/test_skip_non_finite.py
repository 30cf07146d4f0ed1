"""`SkipNonFinite`: steps with NaN or infinity change nothing and are counted."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.compare import assert_same
from tests.helpers.stepping import BACKEND, IMMEDIATE, Rows, Runner, every_mode, to_numpy
from tests.test_wrappers import TABLE

BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize(
    "make",
    (
        lambda: keras_tfopt.LazyAdam(0.1),
        lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(0.1), 0.5),
        lambda: keras_tfopt.LazyAdam(0.1, gradient_accumulation_steps=2),
    ),
)
@every_mode
@pytest.mark.spread
def test_a_step_that_is_not_finite_changes_nothing(make, mode):
    values = {"k": np.ones(3), "embeddings": TABLE}
    runner, clean = (Runner(keras_tfopt.SkipNonFinite(make()), values, mode) for _ in range(2))
    good = {"k": np.ones(3), "embeddings": Rows(np.ones((2, 3)), np.array([1, 4], "int32"))}
    skipped = 0
    for bad in BAD:
        for path in values:
            runner.step(good)
            clean.step(good)
            broken = {
                "k": np.array([1.0, bad, 1.0]) if path == "k" else good["k"],
                "embeddings": Rows(np.full((2, 3), bad), good["embeddings"].indices)
                if path != "k"
                else good["embeddings"],
            }
            before = runner.snapshot()
            runner.step(broken)
            skipped += 1
            assert runner.optimizer.skipped == skipped
            assert runner.optimizer.skipped_in_a_row == 1
            changed = [not np.array_equal(a, b) for a, b in zip(before, runner.snapshot())]
            assert sum(changed) <= 3  # the two counters, and the wrapper's own count of calls
            for path_ in values:
                assert np.array_equal(runner.values[path_], clean.values[path_])
    inner, twin = runner.optimizer.inner_optimizer, clean.optimizer.inner_optimizer
    for a, b in zip(inner.variables, twin.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@every_mode
@pytest.mark.spread("torch")  # which sums gradients before it looks at each number
def test_large_finite_numbers_are_no_infinity(mode):
    """Their sum overflows, and infinities of both signs add up to NaN."""
    large = np.float32(3e38)  # the rate is not so small that XLA takes it for zero
    optimizer = keras_tfopt.SkipNonFinite(keras_tfopt.GradientDescent(2e-38))
    runner = Runner(optimizer, {"k": np.zeros(3), "b": np.zeros(2)}, mode)
    runner.step({"k": np.full(3, large), "b": np.array([-large, large])})
    assert optimizer.skipped == 0
    np.testing.assert_allclose(runner.values["k"], -6.0, rtol=1e-6)
    runner.step({"k": np.array([np.inf, -np.inf, 0.0]), "b": np.ones(2)})
    assert optimizer.skipped == 1


@pytest.mark.parametrize("mode", IMMEDIATE)
def test_too_many_skipped_steps_in_a_row(mode):
    optimizer = keras_tfopt.SkipNonFinite(keras_tfopt.Momentum(0.1), max_consecutive=1)
    runner = Runner(optimizer, {"k": np.ones(2)}, mode)
    for g in (np.nan, 1.0, np.nan, np.nan):
        runner.step({"k": np.full(2, g)})
    before = runner.snapshot()[0]
    with pytest.raises(FloatingPointError, match="2 steps in a row.*max_consecutive"):
        runner.step({"k": np.ones(2)})
    assert np.array_equal(before, runner.values["k"])
    runner.step({"k": np.ones(2)})  # the error comes once
    assert not np.array_equal(before, runner.values["k"]) and optimizer.skipped == 3


def test_the_callback_raises():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras_tfopt.SkipNonFinite("sgd", max_consecutive=2), "mse")
    x, y = np.ones((32, 2), "float32"), np.full((32, 1), np.nan, "float32")
    before = model.get_weights()
    with pytest.raises(FloatingPointError, match="max_consecutive"):
        callback = keras_tfopt.callbacks.RaiseSkipped(every=3)
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
    if BACKEND == "jax":
        model.jax_state_sync()
    assert_same(before, model.get_weights())
    assert model.optimizer.skipped == 3


@every_mode
def test_averages_of_an_outer_wrapper_ignore_skipped_steps(mode):
    inner = keras_tfopt.SkipNonFinite(keras_tfopt.GradientDescent(1.0))
    runner = Runner(keras_tfopt.MovingAverage(inner, 0.5), {"k": np.zeros(2)}, mode)
    for g in (-1.0, np.nan, -1.0):
        runner.step({"k": np.full(2, g)})
    average = to_numpy(runner.optimizer.slot(runner.variables[0], "average"))
    np.testing.assert_allclose(average, [1.25, 1.25], rtol=1e-6)  # of 0, 1 and 2


def test_skipped_steps_change_no_slot_of_outer_wrappers():
    inner = keras_tfopt.SkipNonFinite(keras_tfopt.Momentum(0.1))
    optimizer = keras_tfopt.Lookahead(keras_tfopt.MovingAverage(inner, 0.5), 2)
    runner = Runner(optimizer, {"k": np.ones(2)}, "compiled")
    runner.step({"k": np.ones(2)})
    (variable,) = runner.variables
    slots = {name: to_numpy(optimizer.slot(variable, name)) for name in optimizer.slot_names}
    assert set(slots) == {"slow", "average", "momentum"}
    runner.step({"k": np.full(2, np.nan)})
    for name, slot in slots.items():
        assert np.array_equal(to_numpy(optimizer.slot(variable, name)), slot), name
