"""Models without variables or without trained ones at first, and layers that are frozen later."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import BACKEND

OPTIMIZERS = {
    "a rule": lambda: keras_tfopt.Adam(0.1),
    "a rule over all variables": lambda: keras_tfopt.Prodigy(),
    "a wrapper": lambda: keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1)),
    "a scaled loss": lambda: keras_tfopt.LossScaleOptimizer(keras_tfopt.Adam(0.1)),
    "workers": lambda: keras_tfopt.distributed.ShardedState(keras_tfopt.Adam(0.1)),
    "Keras inside": lambda: keras_tfopt.SkipNonFinite(keras.optimizers.Adam(0.1)),
}
every_optimizer = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name) for name, make in OPTIMIZERS.items()]
)


def after_two_epochs(model):
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.fit(x, y, epochs=2, verbose=0)
    return [np.array(weight) for weight in model.get_weights()]


def moved(before, after):
    return [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]


@every_optimizer
def test_layers_are_frozen_at_first(make):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    start = [np.array(weight) for weight in model.get_weights()]
    model.trainable = False
    model.compile(make(), keras.losses.MeanSquaredError())
    assert not any(moved(start, after_two_epochs(model)))
    assert int(model.optimizer.iterations) == 0
    model.trainable = True
    model.compile(model.optimizer, keras.losses.MeanSquaredError())
    assert all(moved(start, after_two_epochs(model)))


def without_the_first_layer(optimizer):
    """Return a model that has been trained with its first layer frozen."""
    layers = [keras.layers.Dense(2) for _ in range(3)]
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)])
    layers[0].trainable = False
    model.compile(optimizer, keras.losses.MeanSquaredError())
    after_two_epochs(model)
    layers[0].trainable = True
    return model


@every_optimizer
def test_more_layers_are_trained_than_before(make):
    model = without_the_first_layer(make())
    model.compile(model.optimizer, keras.losses.MeanSquaredError())
    with pytest.raises(ValueError, match="new optimizer"):
        after_two_epochs(model)


@every_optimizer
def test_others_are_trained_than_before(make):
    """State of one layer is not taken for that of another one, or the user knows."""
    model = without_the_first_layer(make())
    model.layers[1].trainable = False
    model.compile(model.optimizer, keras.losses.MeanSquaredError())
    if BACKEND == "jax":  # optimizers get values without names there
        with pytest.warns(UserWarning, match="frozen now, such as '.*/kernel'"):
            after_two_epochs(model)
    else:
        with pytest.raises(ValueError, match="new optimizer"):
            after_two_epochs(model)


@pytest.mark.backends("jax", reason="elsewhere an optimizer goes on with fewer variables")
def test_use_ema_needs_a_new_optimizer_if_layers_are_frozen():
    """At the end of `fit`, Keras asks for averages even if the first step has failed."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(keras_tfopt.Adam(use_ema=True), keras.losses.MeanSquaredError())
    after_two_epochs(model)
    model.layers[0].trainable = False
    model.compile(model.optimizer, keras.losses.MeanSquaredError())
    with pytest.raises(ValueError, match="`use_ema`.*new optimizer"):
        after_two_epochs(model)


@every_optimizer
def test_a_model_of_other_shapes_needs_a_new_optimizer(make):
    first, second = (
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        for units in (2, 3)
    )
    first.compile(make(), keras.losses.MeanSquaredError())
    after_two_epochs(first)
    second.compile(first.optimizer, keras.losses.MeanSquaredError())
    with pytest.raises(ValueError, match="new optimizer"):
        after_two_epochs(second)


@every_optimizer
def test_a_model_from_an_h5_file_trains(make, tmp_path):
    """Keras builds the optimizer for no variables then, and stock optimizers fail."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(make(), keras.losses.MeanSquaredError())
    end = after_two_epochs(model)
    model.save(tmp_path / "model.h5")
    again = keras.models.load_model(tmp_path / "model.h5")
    assert not any(moved(end, again.get_weights()))
    assert all(moved(end, after_two_epochs(again)))
    assert int(again.optimizer.iterations) == 2


@pytest.mark.backends("tensorflow", reason="other backends build the model before they compile")
@pytest.mark.parametrize("averages", ["wrapper", "use_ema"])
def test_xla_needs_a_built_model_if_state_starts_at_the_weights(averages):
    def make():
        if averages == "use_ema":
            return keras_tfopt.Momentum(0.1, use_ema=True)
        return keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1))

    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(make(), "mse", jit_compile=True)
    with pytest.raises(RuntimeError, match="`model.build.shape.`.*kernel"):
        model.fit(x, y, verbose=0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 2))
    model.compile(make(), "mse", jit_compile=True)
    model.fit(x, y, verbose=0)
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("clipping", [True, False])
def test_a_late_first_gradient_of_adopt_moves_nothing(clipping):
    """As in timm and the authors' code, which count steps for each variable."""
    first, late = (keras.Variable(np.ones(2, "float32"), name=n) for n in ("first", "late"))
    optimizer = keras_tfopt.ADOPT(0.1, clipping=clipping)
    optimizer.build([first, late])
    g = keras.ops.convert_to_tensor(np.array([2.0, 0.0], "float32"))
    for _ in range(3):
        optimizer.apply([g, None], [first, late])
    optimizer.apply([g, g], [first, late])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(late), 1)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(optimizer.slot(late, "v")), [4, 0])
    optimizer.apply([g, g], [first, late])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(late), [0.99, 1], rtol=1e-6)
