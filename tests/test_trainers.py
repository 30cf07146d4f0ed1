"""Models that train another model: interrupts, frozen layers, and weights of several kinds."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import SharpnessAware
from tests.helpers.stepping import BACKEND

every_trainer = pytest.mark.parametrize("wrap", (SharpnessAware, keras_tfopt.solvers.LineSearch))


def dense_layers(count=2, **first):
    layers = [keras.layers.Dense(4, **(first if n == 0 else {})) for n in range(count)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=value.shape) for value in model.get_weights()])
    return model


def fitted(trainer, **options):
    trainer.compile(keras_tfopt.GradientDescent(0.01), loss="mse", **options)
    data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    trainer.fit(data, data, batch_size=4, shuffle=False, verbose=0)
    return trainer.model.get_weights()


@pytest.mark.backends("torch", "tensorflow", reason="JAX compiles all steps")
@every_trainer
def test_an_interrupt_leaves_the_weights_before_the_step(wrap):
    class Interrupt(keras.layers.Layer):
        calls = 0  # left

        def call(self, x):
            Interrupt.calls -= 1
            if Interrupt.calls == 0:
                raise KeyboardInterrupt
            return x

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Interrupt()])
    trainer = wrap(model)
    start = fitted(trainer, run_eagerly=True)
    Interrupt.calls = 2
    with pytest.raises(KeyboardInterrupt):
        fitted(trainer, run_eagerly=True)
    for before, after in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)


@every_trainer
def test_weights_that_the_loss_does_not_reach_stay(wrap):
    inputs = keras.Input((4,))
    heads = {"a": keras.layers.Dense(4)(inputs), "b": keras.layers.Dense(4)(inputs)}
    model = keras.Model(inputs, heads)
    start = model.get_weights()
    trainer = wrap(model)
    trainer.compile(keras_tfopt.GradientDescent(0.01), loss={"a": "mse"})
    trainer.fit(np.ones((8, 4)), {"a": np.ones((8, 4))}, verbose=0)
    moved = [np.any(a != b) for a, b in zip(start, model.get_weights(), strict=True)]
    assert moved == [True, True, False, False]


@pytest.mark.parametrize("options", ({}, {"adaptive": True, "alpha": 0.5}))
def test_weights_of_several_data_types(options):
    """They move as in a model of float32."""
    ends = []
    for dtype in ("float32", "float64"):
        ends.append(fitted(SharpnessAware(dense_layers(dtype=dtype), **options)))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", ({}, {"alpha": 0.5, "ascent_momentum": 0.5}))
def test_a_model_that_does_not_train(options):
    model = dense_layers()
    model.trainable = False
    start = model.get_weights()
    for before, after in zip(start, fitted(SharpnessAware(model, **options)), strict=True):
        np.testing.assert_array_equal(after, before)


def test_velocities_belong_to_variables():
    """Without a step before, a layer that is frozen later makes no difference to the others."""
    ends = []
    for late in (False, True):
        model = dense_layers(3)
        trainer = SharpnessAware(model, rho=0.5, ascent_momentum=0.9)
        if late:
            trainer.build((8, 4))
        model.layers[0].trainable = False
        ends.append(fitted(trainer))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)
    model.layers[0].trainable = True
    fitted(trainer)


def test_a_layer_without_velocities_is_refused():
    model = dense_layers()
    model.layers[0].trainable = False
    trainer = SharpnessAware(model, ascent_momentum=0.5)
    start = fitted(trainer)
    model.layers[0].trainable = True
    with pytest.raises(ValueError, match="Make a new SharpnessAware of the model"):
        fitted(trainer)
    if BACKEND != "jax":  # Keras deletes the values that a failed first step was given
        for before, after in zip(start, model.get_weights(), strict=True):
            np.testing.assert_array_equal(after, before)
    fitted(SharpnessAware(dense_layers(), ascent_momentum=0.5))
