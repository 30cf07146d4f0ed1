"""`minimize(..., compiled=True)`: the step is kept, and still sees what the loss reads."""

import functools
import itertools
import time
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfopt import legacy
from tests.stepping import BACKEND, make_variable, to_numpy

batch = None  # rebound by a test, as a script rebinds its batch
settings = types.ModuleType("settings")


def variable(values, name="x"):
    return make_variable(name, np.asarray(values, "f"))


def counter():
    return keras.Variable(0, dtype="int32", trainable=False, name="global_step")


def compilations(optimizer):
    """How many steps the optimizer has compiled: none where that has no effect."""
    memory = getattr(optimizer, "_memory", None)  # optimizers of TensorFlow need none
    return 0 if memory is None else len(memory.steps)


def squared_error(model, x):
    return ops.mean(ops.square(model(x, training=True) - 1))


def check_compilations(optimizer, count):
    assert compilations(optimizer) == (count if BACKEND == "jax" else 0)


@pytest.mark.slow
def test_same_as_without():
    """A model with statistics and dropout, wrappers, a rate that a function gives."""
    x = np.random.RandomState(0).randn(3, 8, 3).astype("f")
    results = []
    for compiled in (False, True):
        keras.utils.set_random_seed(1)
        dropout = keras.layers.Dropout(0.5, seed=3)
        normalization = keras.layers.BatchNormalization()
        # Without a bias, whose gradient before a normalization is nothing but rounding.
        hidden = keras.layers.Dense(4, use_bias=False)
        layers = [hidden, normalization, dropout, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.build((None, 3))
        step = counter()
        rate = keras.Variable(0.1, trainable=False, name="rate")
        inner = legacy.extend_with_decoupled_weight_decay(legacy.NadamOptimizer)
        optimizer = legacy.MovingAverageOptimizer(inner(0.01, learning_rate=rate), 0.9)
        for number, one in enumerate(x):
            rate.assign(0.1 / (number + 1))
            new = optimizer.minimize(
                functools.partial(squared_error, model, one),
                global_step=step,
                compiled=compiled,
            )
            assert int(new) == int(step) == number + 1
        state = [optimizer.get_slot(v, s) for v in model.trainable_variables for s in "mv"]
        averages = [optimizer.get_slot(v, "average") for v in model.trainable_variables]
        results.append([to_numpy(v) for v in [*model.variables, *state, *averages]])
    for plain, kept in zip(*results, strict=True):
        np.testing.assert_allclose(kept, plain, rtol=2e-4, atol=1e-5)
    check_compilations(optimizer, 1)


class Trainer:
    scale = 1.0

    def __init__(self, x):
        self.x = variable([0.0])
        self.batch = x

    def loss(self):
        return ops.sum(self.x * self.batch) * self.scale


def take(optimizer, loss):
    optimizer.minimize(loss, compiled=True)


def of_a_closure(x):
    value = np.ones(1, "f")

    def set_to(new):
        nonlocal value
        value = new

    return (lambda: ops.sum(x * value)), set_to


def of_a_global(x):
    def set_to(new):
        global batch
        batch = new

    set_to(np.ones(1, "f"))
    return (lambda: ops.sum(x * batch)), set_to


def of_a_module(x):
    settings.batch = np.ones(1, "f")
    return (lambda: ops.sum(x * settings.batch)), lambda new: setattr(settings, "batch", new)


def of_an_object(x):
    trainer = Trainer(np.ones(1, "f"))
    trainer.x = x
    return trainer.loss, lambda new: setattr(trainer, "batch", new)


def of_a_dictionary(x):
    data = {"batch": (np.ones(1, "f"), [np.zeros(1, "f")])}

    def set_to(new):
        data["batch"] = (new, data["batch"][1])

    return (lambda: ops.sum(ops.add(x * data["batch"][0], data["batch"][1][0]))), set_to


def of_a_function_inside(x):
    loss, set_to = of_a_closure(x)
    return (lambda: loss() + 0.0), set_to


def of_an_array_in_place(x):
    value = np.ones(1, "f")
    return (lambda: ops.sum(x * value)), lambda new: value.__setitem__(slice(None), new)


@pytest.mark.parametrize(
    "place",
    [
        of_a_closure,
        of_a_global,
        of_a_module,
        of_an_object,
        of_a_dictionary,
        of_a_function_inside,
        of_an_array_in_place,
    ],
)
def test_a_rebound_batch_is_seen(place):
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss, set_to = place(x)
    expected = -1.0
    take(optimizer, loss)
    for new in (10.0, 100.0):
        set_to(np.full(1, new, "f"))
        take(optimizer, loss)
        expected -= new
        assert to_numpy(x).tolist() == [expected]
    check_compilations(optimizer, 1)


def test_a_new_function_with_a_new_batch_is_the_same_step():
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    for value in (1.0, 10.0, 100.0):
        given = np.full(1, value, "f")
        take(optimizer, lambda: ops.sum(x * given))  # noqa: B023
        take(optimizer, functools.partial(lambda a, b: ops.sum(a * b), x, given))
    assert to_numpy(x).tolist() == [-222.0]
    check_compilations(optimizer, 2)


def test_other_numbers_and_shapes_compile_again():
    trainer = Trainer(np.ones(1, "f"))
    optimizer = legacy.GradientDescentOptimizer(1.0)
    take(optimizer, trainer.loss)
    trainer.scale = 10.0
    take(optimizer, trainer.loss)
    trainer.batch = np.ones((2, 1), "f")
    take(optimizer, trainer.loss)
    Trainer.scale = 100.0
    del trainer.scale
    try:
        take(optimizer, trainer.loss)
    finally:
        Trainer.scale = 1.0
    assert to_numpy(trainer.x).tolist() == [-1.0 - 10.0 - 20.0 - 200.0]
    check_compilations(optimizer, 4)


stream = iter([])  # which no compiled step may read


class Loader:
    """Is made by what no compiled step may read."""

    def __init__(self):
        self.x = variable([0.0])
        self.factor = next(stream)

    def loss(self):
        return ops.sum(self.x) * self.factor


class Cloning(Loader):
    def loss(self):
        return ops.sum(self.x) * type(self)().factor


def test_how_an_object_was_made_is_of_no_consequence():
    """The methods that a step calls are looked into; those that made the object are done."""
    global stream
    stream = iter([1.0])
    loader = Loader()
    optimizer = legacy.GradientDescentOptimizer(1.0)
    take(optimizer, loader.loss)
    loader.factor = 10.0
    take(optimizer, loader.loss)
    assert to_numpy(loader.x).tolist() == [-11.0]


@pytest.mark.skipif(BACKEND != "jax", reason="has an effect on JAX only")
@pytest.mark.parametrize(
    "loss",
    [lambda made: made.loss, lambda made: lambda: ops.sum(made.x) * Loader().factor],
    ids=["by its type", "by its name"],
)
def test_how_an_object_is_made_counts_where_the_step_makes_one(loss):
    global stream
    stream = iter([1.0, 10.0])
    with pytest.raises(TypeError, match="`stream` in `Loader.__init__`.*iterator"):
        take(legacy.GradientDescentOptimizer(1.0), loss(Cloning()))


def test_layers_that_are_changed_are_seen():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Rescaling(1.0)])
    model.add(keras.layers.Dense(1, use_bias=False))
    data = np.ones((1, 2), "f")
    optimizer = legacy.GradientDescentOptimizer(1.0)
    start = model.get_weights()[0]
    take(optimizer, lambda: ops.sum(model(data)))
    np.testing.assert_allclose(model.get_weights()[0], start - 1, rtol=1e-6)
    model.layers[0].scale = 10.0
    take(optimizer, lambda: ops.sum(model(data)))
    np.testing.assert_allclose(model.get_weights()[0], start - 11, rtol=1e-6)


def test_rates_from_functions_are_seen():
    x, rate = variable([0.0]), 1.0
    optimizer = legacy.GradientDescentOptimizer(lambda: rate)
    take(optimizer, lambda: ops.sum(x))
    rate = 10.0
    take(optimizer, lambda: ops.sum(x))
    assert to_numpy(x).tolist() == [-11.0]


def test_variables_that_stop_training_are_seen():
    x, y = variable([0.0]), variable([0.0], "y")
    optimizer = legacy.GradientDescentOptimizer(1.0)
    for trainable in (True, False, True):
        y.trainable = trainable
        take(optimizer, lambda: ops.sum(x + y))
    assert to_numpy(x).tolist() == [-3.0]
    assert to_numpy(y).tolist() == [-2.0]


def test_a_subclass_takes_effect_and_is_seen():
    class Scaled(legacy.GradientDescentOptimizer):
        scale = 2.0

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = [(self.scale * g, v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, global_step=global_step, name=name)

    x = variable([0.0])
    inner = Scaled(1.0)
    optimizer = legacy.MovingAverageOptimizer(inner)
    take(optimizer, lambda: ops.sum(x))
    inner.scale = 20.0
    take(optimizer, lambda: ops.sum(x))
    assert to_numpy(x).tolist() == [-22.0]


def test_layers_are_built_by_the_first_step():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    data = np.ones((1, 2), "f")
    optimizer = legacy.AdamOptimizer(0.1)
    losses = []
    for _ in range(30):
        take(optimizer, lambda: ops.sum(ops.square(model(data) - 1)))
        losses.append(float(ops.convert_to_numpy(model(data))[0, 0]))
    assert abs(losses[-1] - 1) < 0.1 < abs(losses[0] - 1)


@pytest.mark.skipif(BACKEND != "jax", reason="has an effect on JAX only")
@pytest.mark.parametrize(
    ("loss", "error", "match"),
    [
        (lambda x: iter([1.0]), TypeError, "iterator"),
        (lambda x: np.random.default_rng(), TypeError, "NumPy"),
        (lambda x: itertools.count(), TypeError, "iterator"),
        (lambda x: object(), TypeError, "class object"),
        (lambda x: np.random.rand, TypeError, "NumPy"),
        (lambda x: lambda: np.random.rand(), ValueError, "numpy.random"),
        (lambda x: time.perf_counter, ValueError, "clock"),
    ],
)
def test_what_could_not_be_seen_is_refused(loss, error, match):
    x = variable([1.0])
    source = loss(x)

    def read():
        if hasattr(source, "__next__"):
            return next(source)
        return source() if callable(source) else 1.0

    optimizer = legacy.GradientDescentOptimizer(1.0)
    with pytest.raises(error, match=match):
        take(optimizer, lambda: ops.sum(x * read()))
    assert to_numpy(x).tolist() == [1.0]


@pytest.mark.skipif(BACKEND != "jax", reason="has an effect on JAX only")
def test_a_number_that_changes_in_each_step_warns():
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    with pytest.warns(UserWarning, match="compiled 8 steps") as record:
        for number in range(8):
            optimizer.minimize(lambda: number * ops.sum(x), compiled=True)  # noqa: B023
    assert record[0].filename == __file__


@pytest.mark.skipif(BACKEND != "jax", reason="has an effect on JAX only")
def test_nothing_stays_exchanged_after_an_error():
    x, data = variable([0.0]), np.ones(1, "f")

    def loss():
        if not isinstance(data, np.ndarray):
            raise RuntimeError("while it is traced")
        return ops.sum(x * data)

    with pytest.raises(RuntimeError, match="while it is traced"):
        take(legacy.GradientDescentOptimizer(1.0), loss)
    assert isinstance(data, np.ndarray)
    assert float(ops.convert_to_numpy(loss())) == 0.0


def test_another_choice_of_variables_that_decay():
    """What decays may be chosen in a compiled step for the first time."""
    x, y = variable([1.0]), variable([1.0], "y")
    optimizer = legacy.MomentumWOptimizer(0.5, learning_rate=1.0, momentum=0.0)
    for chosen in (None, [y], [y], [x]):
        optimizer.minimize(
            lambda: 0 * ops.sum(x) + 0 * ops.sum(y), decay_var_list=chosen, compiled=True
        )
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (0.25, 0.125)
    assert int(optimizer.keras.iterations) == 4
