"""Optimizers and callbacks of TensorFlow Addons that average weights."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import addons


def trained(optimizer, steps=5, **options):
    """A small model after some steps of training."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    x = np.random.default_rng(0).normal(size=(8 * steps, 3)).astype("float32")
    model.fit(x, x[:, :2], batch_size=8, verbose=0, **options)
    return model


@pytest.mark.parametrize(
    ("name", "options"), [("MovingAverage", {}), ("SWA", {"average_period": 2})]
)
def test_averages_are_assigned(name, options):
    model = trained(getattr(addons, name)("sgd", **options))
    assert isinstance(model.optimizer, addons.AveragedOptimizerWrapper)
    with keras_tfopt.averaged(model):
        averages = model.get_weights()
    before = model.get_weights()
    model.optimizer.assign_average_vars(model.trainable_variables)
    for weight, average, old in zip(model.get_weights(), averages, before, strict=True):
        np.testing.assert_array_equal(weight, average)
        assert np.any(weight != old)
    unknown = keras.Variable(np.zeros(2), name="unknown")
    with pytest.warns(UserWarning, match="no average of 'unknown'"):
        model.optimizer.assign_average_vars([unknown])


def test_weights_and_averages_change_places():
    model = trained(addons.MovingAverage(keras.optimizers.SGD(0.1), 0.9))
    with pytest.raises(RuntimeError, match="shadow_copy"):
        model.optimizer.swap_weights()
    model.optimizer.shadow_copy(model.trainable_variables)
    assert model.optimizer.has_shadow_copy
    weights = model.get_weights()
    with keras_tfopt.averaged(model):
        averages = model.get_weights()
    for expected in (averages, weights):
        model.optimizer.swap_weights()
        for found, value in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize("update", [False, True])
def test_checkpoint_of_averages(tmp_path, update):
    """The file has the averages; the model gets them too if `update_weights` says so."""
    path = tmp_path / "averages.weights.h5"
    callback = addons.AverageModelCheckpoint(update, str(path), save_weights_only=True)
    model = trained(addons.MovingAverage(keras.optimizers.SGD(0.1), 0.9), callbacks=[callback])
    weights = model.get_weights()
    with keras_tfopt.averaged(model):
        averages = model.get_weights()
    model.load_weights(path)
    for saved, average, weight in zip(model.get_weights(), averages, weights, strict=True):
        np.testing.assert_array_equal(saved, average)
        assert np.array_equal(saved, weight) == update


@pytest.mark.spread("torch")
def test_checkpoint_needs_averages(tmp_path):
    """The callback refuses an optimizer that keeps no averages."""
    callback = addons.AverageModelCheckpoint(False, str(tmp_path / "a.weights.h5"))
    with pytest.raises(TypeError, match="MovingAverage"):
        trained("sgd", callbacks=[callback])
