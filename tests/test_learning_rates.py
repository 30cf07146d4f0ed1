"""Learning rates that callbacks of Keras or a program assign."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.stepping import Runner, to_numpy


def dense_fit(optimizer, callbacks, epochs=6):
    """`fit` of one weight with a loss that does not improve; the weight and the final rate."""
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(optimizer, lambda _, outputs: -keras.ops.mean(outputs))
    ones = np.ones((2, 1))
    history = model.fit(
        ones, ones, batch_size=1, epochs=epochs, verbose=0, callbacks=callbacks
    ).history
    return model.get_weights()[0].item(), float(to_numpy(model.optimizer.learning_rate)), history


@pytest.mark.parametrize("make", (keras_tfopt.Momentum, keras_tfopt.LazyAdam, keras_tfopt.GGT))
def test_learning_rate_scheduler(make):
    if make is not keras_tfopt.Momentum:
        _, rate, _ = dense_fit(make(0.5), [keras.callbacks.LearningRateScheduler(halved)])
        assert rate == 0.5 / 2**6
        return
    callbacks = [keras.callbacks.LearningRateScheduler(halved)]
    weight, rate, history = dense_fit(make(0.5, momentum=0.0), callbacks)
    rates = [0.5 / 2 ** (epoch + 1) for epoch in range(6)]
    assert rate == rates[-1]
    assert np.allclose(history["learning_rate"], rates)
    assert abs(weight - (1 + 2 * sum(rates))) < 1e-6  # two steps an epoch, gradient -1


def halved(epoch, rate):
    return rate / 2


def test_reduce_lr_on_plateau():
    def callbacks():
        # no improvement counts as one
        return [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=1e9)]

    mine = dense_fit(keras_tfopt.Momentum(0.25, momentum=0.0), callbacks())
    stock = dense_fit(keras.optimizers.SGD(0.25), callbacks())
    assert mine[1] == stock[1] < 0.25
    assert abs(mine[0] - stock[0]) < 1e-6


def test_a_rate_assigned_under_float64_variables():
    optimizer = keras_tfopt.Momentum(0.1)
    runner = Runner(optimizer, {"kernel": np.ones(2)}, "compiled", "float64")
    optimizer.learning_rate = 0.3
    runner.step({"kernel": np.ones(2)})
    assert np.max(np.abs(runner.values["kernel"] - 0.7)) < 1e-15
