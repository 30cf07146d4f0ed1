"""`minimize(loss, inputs=..., compiled=True)`: when a step is compiled, and what is refused."""

import copy
import functools
import gc
import itertools
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfopt import legacy
from tests.helpers.stepping import BACKEND, to_numpy
from tests.helpers.verbs import counter, variable

jax_only = pytest.mark.backends("jax", reason="no step is compiled elsewhere")


class Counted:
    """A loss that counts how often Python runs it. A compiled step does not run it."""

    def __init__(self, loss):
        self.loss, self.runs = loss, 0

    def __call__(self, *inputs):
        self.runs += 1
        return self.loss(*inputs)


def check_runs(optimizer, loss, inputs, compiles, **arguments):
    """Take a step, and check whether it was compiled: JAX runs the loss only then."""
    loss.runs = 0
    optimizer.minimize(loss, inputs=inputs, compiled=True, **arguments)
    assert bool(loss.runs) == compiles if BACKEND == "jax" else loss.runs == 1


# Numbers


@pytest.mark.spread
@pytest.mark.slow
def test_compiled_steps_equal_plain_ones():
    """The model has statistics and dropout; the optimizer has wrappers and a rate in a variable."""
    x = np.random.RandomState(0).randn(3, 8, 3).astype("f")
    results = []
    for compiled in (False, True):
        keras.utils.set_random_seed(1)
        dropout = keras.layers.Dropout(0.5, seed=3)
        normalization = keras.layers.BatchNormalization()
        # Before a normalization, the gradient of a bias would be nothing but rounding.
        hidden = keras.layers.Dense(4, use_bias=False)
        layers = [hidden, normalization, dropout, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.build((None, 3))
        squared_error = keras.losses.MeanSquaredError()

        def of_batch(x, model=model, squared_error=squared_error):
            return squared_error(ops.ones((len(x), 1)), model(x, training=True))

        loss, step = Counted(of_batch), counter()
        rate = keras.Variable(0.1, trainable=False, name="rate")
        inner = legacy.extend_with_decoupled_weight_decay(legacy.NadamOptimizer)
        optimizer = legacy.MovingAverageOptimizer(inner(0.01, learning_rate=rate), 0.9)
        for number, one in enumerate(x):
            rate.assign(0.1 / (number + 1))
            if compiled:
                check_runs(optimizer, loss, (one,), number == 0, global_step=step)
            else:
                optimizer.minimize(loss, inputs=(one,), global_step=step)
            assert int(step) == number + 1
        state = [optimizer.get_slot(v, s) for v in model.trainable_variables for s in "mv"]
        averages = [optimizer.get_slot(v, "average") for v in model.trainable_variables]
        results.append([to_numpy(v) for v in [*model.variables, *state, *averages]])
    for plain, kept in zip(*results, strict=True):
        np.testing.assert_allclose(kept, plain, rtol=2e-4, atol=1e-5)


def scaled_sum(x, batch):
    values, (ones,) = batch["values"]
    return ops.sum(ops.multiply(x * ops.cast(values, "float32"), ones)) * batch["scale"]


@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_are_read_in_each_call(compiled):
    """Inputs are arrays, tensors and numbers in any structure."""
    x = variable([0.0, 0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss = Counted(functools.partial(scaled_sum, x))
    for number, make in enumerate((np.float32, np.float64, ops.convert_to_tensor)):
        batch = {"values": (make([1.0, 2.0]), [np.ones(2, "f")]), "scale": 10.0**number}
        optimizer.minimize(loss, inputs=(batch,), compiled=compiled)
    np.testing.assert_allclose(to_numpy(x), [-111.0, -222.0], rtol=1e-6)


def test_one_step_is_compiled_for_each_shape():
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss = Counted(lambda batch: ops.sum(x * batch))
    for size, compiles in ((1, True), (2, True), (1, False), (2, False)):
        check_runs(optimizer, loss, (np.ones(size, "f"),), compiles)
    assert to_numpy(x).tolist() == [-6.0]


def test_a_bound_method_is_compiled_once():
    class Trainer:
        x = variable([0.0])
        runs = 0

        def loss(self, batch):
            Trainer.runs += 1
            return ops.sum(self.x * batch)

    trainer, optimizer = Trainer(), legacy.GradientDescentOptimizer(1.0)
    runs = []
    for value in (1.0, 10.0, 100.0):
        optimizer.minimize(trainer.loss, inputs=(np.full(1, value),), compiled=True)
        runs.append(Trainer.runs)
    assert to_numpy(trainer.x).tolist() == [-111.0]
    assert runs[1] == runs[2] if BACKEND == "jax" else runs == [1, 2, 3]


def test_grad_loss_is_an_input():
    x = variable([0.0, 0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss = Counted(lambda: x * 1.0)
    weight = variable([100.0, 200.0], "weight")
    given = (np.array([1.0, 2.0], "f"), np.array([10.0, 20.0], "f"), weight)
    for number, grad_loss in enumerate(given):
        check_runs(optimizer, loss, (), number == 0, grad_loss=grad_loss)
    assert to_numpy(x).tolist() == [-111.0, -222.0]


def test_other_arguments_compile_another_step():
    x, y = variable([0.0]), variable([0.0], "y")
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss, first, second = Counted(lambda: ops.sum(x + y)), counter(), counter()
    check_runs(optimizer, loss, (), True, var_list=[x], global_step=first)
    check_runs(optimizer, loss, (), True, var_list=[y], global_step=first)
    check_runs(optimizer, loss, (), True, var_list=[x], global_step=second)
    check_runs(optimizer, loss, (), False, var_list=[x], global_step=first)
    assert (int(first), int(second)) == (3, 1)
    assert (to_numpy(x).tolist(), to_numpy(y).tolist()) == ([-3.0], [-1.0])


def test_variables_that_stop_training_are_seen():
    x, y = variable([0.0]), variable([0.0], "y")
    optimizer = legacy.GradientDescentOptimizer(1.0)
    loss = Counted(lambda: ops.sum(x + y))
    for trainable in (True, False, True):
        y.trainable = trainable
        optimizer.minimize(loss, compiled=True)
    assert to_numpy(x).tolist() == [-3.0]
    assert to_numpy(y).tolist() == [-2.0]


def test_a_subclass_takes_effect():
    class Scaled(legacy.GradientDescentOptimizer):
        scale = variable(2.0, "scale")

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = [(ops.convert_to_tensor(self.scale) * g, v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, global_step=global_step, name=name)

    x = variable([0.0])
    optimizer = legacy.MovingAverageOptimizer(Scaled(1.0))
    loss = Counted(lambda: ops.sum(x))
    check_runs(optimizer, loss, (), True)
    Scaled.scale.assign(20.0)
    check_runs(optimizer, loss, (), False)
    assert to_numpy(x).tolist() == [-22.0]


def test_a_copy_compiles_its_own_step():
    x = variable([0.0])
    loss = Counted(lambda: ops.sum(x))
    optimizer = legacy.GradientDescentOptimizer(1.0)
    check_runs(optimizer, loss, (), True)
    check_runs(copy.copy(optimizer), loss, (), True)
    assert to_numpy(x).tolist() == [-2.0]


def test_layers_are_built_by_the_first_step():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    data = np.ones((1, 2), "f")
    optimizer = legacy.AdamOptimizer(0.1)

    def loss(x):
        return ops.sum(ops.square(model(x) - 1))

    optimizer.minimize(loss, inputs=(data,), compiled=True)
    first = float(to_numpy(loss(data)))
    for _ in range(30):
        optimizer.minimize(loss, inputs=(data,), compiled=True)
    assert float(to_numpy(loss(data))) < 0.01 < first


def test_each_step_may_choose_which_variables_decay():
    x, y = variable([1.0]), variable([1.0], "y")
    optimizer = legacy.MomentumWOptimizer(0.5, learning_rate=1.0, momentum=0.0)

    def loss():
        return 0 * ops.sum(x) + 0 * ops.sum(y)

    for chosen in (None, [y], iter([y]), [x]):
        optimizer.minimize(loss, decay_var_list=chosen, compiled=True)
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (0.25, 0.125)
    assert int(optimizer.keras.iterations) == 4


# What a compiled step cannot see


def product(x, read, use=lambda read: ops.cast(read, "float32")):
    return lambda: ops.sum(x * use(read))


def compiled_by_jax(function):
    import jax

    return jax.jit(function)


# Functions that return a loss. The loss reads three numbers that are none of its arguments.
READING = {
    "array": lambda x, data: lambda: ops.sum(x * data),
    "integers": lambda x, data: product(x, data.astype("int32")),
    "tensor": lambda x, data: product(x, ops.convert_to_tensor(data)),
    "computed": lambda x, data: product(x, np.tile(data, 2), lambda read: ops.square(read[:3] + 1)),
    "list": lambda x, data: product(x, data.tolist(), ops.convert_to_tensor),
    "iterator": lambda x, data: product(x, itertools.repeat(data), next),
    "default": lambda x, data: lambda data=data: ops.sum(x * data),
    "compiled function": lambda x, data: (
        lambda: compiled_by_jax(lambda value: ops.sum(value * data))(x.value)
    ),
    "branch": lambda x, data: (
        lambda: ops.cond(x[0] > 0, lambda: ops.sum(x * data), lambda: ops.sum(x))
    ),
}


@jax_only
@pytest.mark.parametrize("make", READING.values(), ids=READING)
def test_an_array_that_is_no_input_is_refused(make):
    x, step, data = variable([1.0, 2.0, 3.0]), counter(), np.arange(3, dtype="f")
    optimizer = legacy.AdamOptimizer(1.0)
    with pytest.raises(ValueError, match=r"`inputs=`.* 1 in all, of shape \(3,\) and dtype"):
        optimizer.minimize(make(x, data), global_step=step, compiled=True)
    assert to_numpy(x).tolist() == [1.0, 2.0, 3.0] and int(step) == 0
    optimizer.minimize(make(x, data), global_step=step)  # this works without `compiled`
    assert int(step) == 1


@jax_only
@pytest.mark.parametrize("number", [np.random.rand, itertools.count().__next__])
def test_a_number_that_changes_in_each_call_is_refused(number):
    x = variable([1.0])
    with pytest.raises(ValueError, match="numpy.random or of an iterator: pass them in `inputs=`"):
        legacy.GradientDescentOptimizer(1.0).minimize(
            lambda: ops.sum(x * float(number())), compiled=True
        )
    assert to_numpy(x).tolist() == [1.0]


@jax_only
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda f: legacy.GradientDescentOptimizer(f), "`learning_rate` of GradientDescent"),
        (lambda f: legacy.MomentumOptimizer(0.1, f), "`momentum` of Momentum"),
        (
            lambda f: legacy.MovingAverageOptimizer(legacy.Optimizer(keras.optimizers.SGD(f))),
            "`learning_rate` of SGD",
        ),
        (lambda f: legacy.MomentumWOptimizer(f, 0.1, 0.9), "`weight_decay` of "),
    ],
)
def test_arguments_that_are_functions_are_refused(make, argument):
    x = variable([1.0])
    optimizer = make(lambda: 0.5)
    with pytest.raises(ValueError, match=f"keras.Variable.* functions as {argument}"):
        optimizer.minimize(lambda: ops.sum(x), compiled=True)
    assert to_numpy(x).tolist() == [1.0]
    optimizer.minimize(lambda: ops.sum(x))
    assert to_numpy(x).tolist() != [1.0]


@pytest.mark.parametrize("make", [float, np.float32, ops.convert_to_tensor])
def test_other_numbers_keep_their_values_of_the_first_call(make):
    """A number that changes must be an input, as the documentation says."""
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)

    def loss(factor):
        return ops.sum(x) * scale * factor

    for scale in map(make, (1.0, 10.0)):
        optimizer.minimize(loss, inputs=(scale,), compiled=True)
    assert to_numpy(x).tolist() == [-11.0 if BACKEND == "jax" else -101.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_arrays_that_keras_makes_of_numbers_are_not_refused(compiled):
    """Regularizers, means and random generators make arrays of numbers."""
    keras.utils.set_random_seed(1)
    kernel = keras.layers.Dense(1, kernel_regularizer="l2", activity_regularizer="l1")
    model = keras.Sequential([keras.Input((2,)), kernel, keras.layers.Dropout(0.0)])
    start = model.get_weights()[0]
    distance = keras.losses.MeanSquaredError()

    def loss(x):
        error = distance(ops.ones((1, 1)), model(x, training=True))
        return 0.0 * error + sum(model.losses)

    optimizer = legacy.GradientDescentOptimizer(1.0)
    for _ in range(2):
        optimizer.minimize(loss, inputs=(np.zeros((1, 2), "f"),), compiled=compiled)
    # The penalty is 0.01 times the sum of squares.
    np.testing.assert_allclose(model.get_weights()[0], start * 0.98**2, rtol=1e-6)


@jax_only
def test_a_new_function_in_each_step_warns():
    x = variable([0.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    with pytest.warns(UserWarning, match="compiled 8 steps.*same function") as record:
        for number in range(9):
            optimizer.minimize(lambda: number * ops.sum(x), compiled=True)  # noqa: B023
    assert [one.filename for one in record] == [__file__]
    assert to_numpy(x).tolist() == [-36.0]


@jax_only
def test_a_loss_is_not_kept_alive():
    x, optimizer = variable([0.0]), legacy.GradientDescentOptimizer(1.0)

    def loss():
        return ops.sum(x)

    optimizer.minimize(loss, compiled=True)
    gone = weakref.ref(loss)
    del loss
    gc.collect()
    assert gone() is None


@jax_only
def test_variables_keep_their_values_if_a_loss_fails():
    x = variable([1.0])

    def loss():
        x.assign(x + 1.0)
        raise RuntimeError("while it is traced")

    with pytest.raises(RuntimeError, match="while it is traced"):
        legacy.GradientDescentOptimizer(1.0).minimize(loss, compiled=True)
    assert to_numpy(x).tolist() == [1.0]


# Inputs


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x: np.ones(1), r"`inputs` must be a tuple .*Received: array"),
        (lambda x: 3, "`inputs` must be a tuple .*Received: 3"),
        (lambda x: None, "`inputs` must be a tuple .*Received: None"),
        (lambda x: ("text",), "`inputs` must hold tensors .*Received: 'text'"),
        (lambda x: ({"a": [object]},), "`inputs` must hold tensors .*Received: <class 'object'>"),
        (lambda x: (np.array(["text"]),), "`inputs` must hold tensors .*Received: array"),
        (lambda x: (x,), "variables are read by `loss` itself. Received: <"),
    ],
)
def test_wrong_inputs(make, match, compiled):
    x = variable([1.0])
    with pytest.raises(TypeError, match=match):
        legacy.GradientDescentOptimizer(1.0).minimize(
            lambda *inputs: ops.sum(x), inputs=make(x), compiled=compiled
        )
    assert to_numpy(x).tolist() == [1.0]
