"""Learning rates that callbacks of Keras or a program assign."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.stepping import Runner, to_numpy


def dense_fit(optimizer, callbacks, epochs=6):
    """Train one weight with `fit`; return it, the last learning rate and the history.

    The loss is minus the weight, so each gradient is -1.
    """
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(optimizer, lambda _, outputs: -keras.ops.mean(outputs))
    x = np.ones((2, 1))
    history = model.fit(x, x, batch_size=1, epochs=epochs, verbose=0, callbacks=callbacks)
    rate = float(to_numpy(model.optimizer.learning_rate))
    return model.get_weights()[0].item(), rate, history.history


@pytest.mark.parametrize("make", (keras_tfopt.Momentum, keras_tfopt.LazyAdam, keras_tfopt.GGT))
def test_learning_rate_scheduler(make):
    plain = make is keras_tfopt.Momentum
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    optimizer = make(0.5, momentum=0.0) if plain else make(0.5)
    weight, rate, history = dense_fit(optimizer, [halve])
    rates = [0.5 / 2 ** (epoch + 1) for epoch in range(6)]
    assert rate == rates[-1]
    assert np.allclose(history["learning_rate"], rates)
    if plain:
        assert abs(weight - (1 + 2 * sum(rates))) < 1e-6  # an epoch has two steps


def test_reduce_lr_on_plateau():
    def callbacks():
        # With such a `min_delta`, no loss counts as an improvement.
        return [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=1e9)]

    mine = dense_fit(keras_tfopt.Momentum(0.25, momentum=0.0), callbacks())
    stock = dense_fit(keras.optimizers.SGD(0.25), callbacks())
    assert mine[1] == stock[1] < 0.25
    assert abs(mine[0] - stock[0]) < 1e-6


def test_float64_variables_use_an_assigned_rate_in_full_precision():
    optimizer = keras_tfopt.Momentum(0.1)
    runner = Runner(optimizer, {"kernel": np.ones(2)}, "compiled", "float64")
    optimizer.learning_rate = 0.3
    runner.step({"kernel": np.ones(2)})
    assert np.max(np.abs(runner.values["kernel"] - 0.7)) < 1e-15
