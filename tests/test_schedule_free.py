"""The schedule-free optimizers follow what else changes the variables."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.engine import plain
from tests.stepping import to_numpy

MAKE = {
    "ScheduleFreeSGD": lambda: keras_tfopt.ScheduleFreeSGD(0.1, 0.8),
    "ScheduleFreeAdamW": lambda: keras_tfopt.ScheduleFreeAdamW(0.1),
    "ScheduleFree": lambda: keras_tfopt.ScheduleFree(keras_tfopt.Momentum(0.1, 0.5)),
    "around Keras's": lambda: keras_tfopt.ScheduleFree(keras.optimizers.SGD(0.1)),
    "not joined": lambda: keras_tfopt.ScheduleFree(keras_tfopt.Momentum(0.1, 0.5, use_ema=True)),
}
of_each = pytest.mark.parametrize("name", MAKE)


def built(optimizer, dtype="float32"):
    start = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    variable = keras.Variable(start, dtype=dtype, name="kernel")
    optimizer.build([variable])
    return optimizer, variable


def gradients(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4, 3)).astype("float32")


def train(optimizer, variable, grads):
    for g in grads:
        optimizer.apply([ops.cast(ops.convert_to_tensor(g), variable.dtype)], [variable])


def state(optimizer, variable):
    """Return y, z and x in float32."""
    kept = variable, optimizer.slot(variable, "z"), optimizer.slot(variable, "x")
    return [to_numpy(ops.cast(one, "float32")) for one in kept]


@of_each
def test_a_change_moves_all_three(name):
    change = np.full((4, 3), 0.75, "float32")
    grads = gradients(7)
    plain_run, assigned = built(MAKE[name]()), built(MAKE[name]())
    train(*plain_run, grads)
    train(*assigned, grads[:3])
    variable = assigned[1]
    variable.assign(to_numpy(variable) + change)
    train(*assigned, grads[3:])
    for expected, found in zip(state(*plain_run), state(*assigned), strict=True):
        np.testing.assert_allclose(found, expected + change, rtol=1e-5, atol=2e-6)


@of_each
def test_averages_follow_at_once(name):
    optimizer, variable = built(MAKE[name]())
    train(optimizer, variable, gradients(3))
    *_, x = state(optimizer, variable)
    variable.assign(to_numpy(variable) + 0.5)
    (average,) = [a for _, a in optimizer.averages_now(lambda v: v.value)]
    np.testing.assert_allclose(to_numpy(average), x + 0.5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_without_a_change_z_stays_to_the_bit(dtype, compiled):
    optimizer, variable = built(keras_tfopt.ScheduleFreeSGD(0.1, 0.8), dtype)
    zeros = np.zeros((4, 4, 3), "float32")
    with plain() if not compiled else keras.name_scope("compiled"):
        train(optimizer, variable, gradients(3))
        _, z, x = state(optimizer, variable)
        train(optimizer, variable, zeros)
    _, new_z, new_x = state(optimizer, variable)
    assert np.array_equal(new_z, z)
    assert not np.array_equal(new_x, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_steps_add_up_without_master_weights(dtype):
    optimizer, variable = built(keras_tfopt.ScheduleFreeSGD(1e-5, 0.8), dtype)
    _, start, _ = state(optimizer, variable)
    train(optimizer, variable, np.ones((50, 4, 3), "float32"))
    _, z, _ = state(optimizer, variable)
    np.testing.assert_allclose(start - z, 5e-4, rtol=5e-3)  # float32 rounds each step


@pytest.mark.parametrize("name", list(MAKE)[:2])
def test_decay_around_shrinks(name):
    optimizer, variable = built(keras_tfopt.DecoupledWeightDecay(MAKE[name](), 0.1))
    start = to_numpy(variable)
    train(optimizer, variable, np.zeros((3, 4, 3), "float32"))
    for found in state(optimizer, variable):
        np.testing.assert_allclose(found, 0.9**3 * start, rtol=1e-5)


def test_restored_weights_are_where_training_goes_on():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras_tfopt.ScheduleFreeSGD(0.05), "mse")
    x, y = gradients(8).reshape(-1, 3), np.ones((32, 2), "float32")
    model.fit(x, y, epochs=3, verbose=0)
    best = [np.ones_like(w) for w in model.get_weights()]
    model.set_weights(best)
    model.fit(x, 0 * y + model.predict(x, verbose=0), epochs=1, verbose=0)  # gradients are zero
    for found, expected in zip(model.get_weights(), best, strict=True):
        np.testing.assert_allclose(found, expected, atol=0.05)
