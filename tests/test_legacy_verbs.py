"""The methods `minimize`, `compute_gradients` and `apply_gradients` of `keras_tfopt.legacy`."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfopt import legacy
from tests.helpers.stepping import BACKEND, to_numpy
from tests.helpers.verbs import counter, variable


def test_minimize():
    """`minimize` moves variables by the gradient that NumPy computes, and counts the step."""
    w, b = variable([1.0, -2.0], "w"), variable(0.5, "b")
    x, y = np.array([[1.0, 2.0], [3.0, 4.0]], "f"), np.array([1.0, 0.0], "f")
    step = counter()
    optimizer = legacy.GradientDescentOptimizer(0.1)

    def loss():
        return ops.mean(ops.square(ops.subtract(ops.matmul(x, w) + b, y)))

    new = optimizer.minimize(loss, global_step=step)

    error = x @ [1.0, -2.0] + 0.5 - y
    np.testing.assert_allclose(to_numpy(w), [1.0, -2.0] - 0.1 * x.T @ error, rtol=1e-5)
    np.testing.assert_allclose(to_numpy(b), 0.5 - 0.1 * 2 * error.mean(), rtol=1e-5)
    assert int(new) == int(step) == 1
    assert optimizer.minimize(loss) is None
    assert int(new) == 1, "the returned number does not change in later steps"


def test_gradients_may_be_changed_between_compute_and_apply():
    """A variable without a gradient gets no slots."""
    x, y = variable([3.0, -0.5]), variable([1.0], "y")
    optimizer = legacy.MomentumOptimizer(0.5, 0.9)
    pairs = optimizer.compute_gradients(lambda: ops.sum(ops.square(x)), [x, y])
    assert pairs[0][1] is x and pairs[1] == (None, y)
    capped = [(None if g is None else ops.clip(g, -2.0, 2.0), v) for g, v in pairs]
    assert optimizer.apply_gradients(capped) is None
    np.testing.assert_allclose(to_numpy(x), [2.0, 0.0])
    assert optimizer.get_slot(y, "momentum") is None, "no gradient, no state"


def test_slots_are_read_by_name():
    """Slots exist from the first step on."""
    x = variable([1.0, 2.0])
    optimizer = legacy.AdamOptimizer(0.1, beta1=0.5)
    assert optimizer.get_slot_names() == []
    assert optimizer.get_slot(x, "m") is None
    assert optimizer.variables() == []
    optimizer.minimize(lambda: ops.sum(ops.square(x)))
    assert optimizer.get_slot_names() == ["m", "v"]
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "m")), [1.0, 2.0])
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "v")), [0.004, 0.016], rtol=1e-4)
    assert optimizer.get_slot(x, "momentum") is None
    assert optimizer.get_slot(variable(1.0, "z"), "m") is None
    state = optimizer.variables()
    scalars = 2 if BACKEND == "tensorflow" else 1  # two powers of betas, or a count of steps
    assert [tuple(v.shape) for v in state] == [()] * scalars + [(2,)] * 2
    assert int(optimizer.keras.iterations) == 1
    assert optimizer.get_name() == "Adam"
    assert legacy.AdamOptimizer(name="mine").get_name() == "mine"


def test_compute_lr_of_lars():
    kernel, bias = variable([3.0, 4.0], "kernel"), variable([1.0], "bias")
    optimizer = legacy.LARSOptimizer(2.0, weight_decay=0.1, eeta=0.01, skip_list=["bias"])
    rate, gradient = optimizer.compute_lr(np.array([0.6, 0.8], "f"), kernel)
    np.testing.assert_allclose(float(rate), 2.0 * 0.01 * 5 / (1 + 0.1 * 5), rtol=1e-5)
    np.testing.assert_allclose(to_numpy(gradient), [0.9, 1.2], rtol=1e-5)
    rate, gradient = optimizer.compute_lr(np.array([7.0], "f"), bias)
    assert (float(rate), to_numpy(gradient).tolist()) == (2.0, [7.0])


def test_learning_rates_that_change():
    """A learning rate that is a variable or a function is read in each step."""
    x, rate = variable([0.0]), keras.Variable(1.0, trainable=False, name="rate")
    numbers = iter([100.0, 200.0])
    following = legacy.GradientDescentOptimizer(rate)
    called = legacy.GradientDescentOptimizer(lambda: next(numbers))
    for optimizer in (following, called):
        optimizer.apply_gradients([(np.ones(1, "f"), x)])
        rate.assign(10.0)
        optimizer.apply_gradients([(np.ones(1, "f"), x)])
    np.testing.assert_allclose(to_numpy(x), [-311.0])


def test_sign_decay_follows_the_global_step():
    x, step = variable([0.0]), counter(5)
    optimizer = legacy.AddSignOptimizer(1.0, sign_decay_fn=legacy.get_linear_decay_fn(10))
    expected = 0.0
    for done in (5, 6):
        optimizer.apply_gradients([(np.ones(1, "f"), x)], global_step=step)
        expected -= 1 + (10 - done) / 10
        np.testing.assert_allclose(to_numpy(x), [expected], rtol=1e-5)
    step.assign(0)  # as after a restore: the optimizer's own count does not matter
    optimizer.apply_gradients([(np.ones(1, "f"), x)], global_step=step)
    np.testing.assert_allclose(to_numpy(x), [expected - 2], rtol=1e-5)
    with pytest.raises(ValueError, match="`global_step` is required"):
        optimizer.apply_gradients([(np.ones(1, "f"), x)])
    np.testing.assert_allclose(to_numpy(x), [expected - 2], rtol=1e-5)


# ---- Which variables get gradients ---------------------------------------------------------------


def test_variables_that_the_loss_reads_are_trained():
    read, unread, frozen = variable([1.0], "read"), variable([1.0], "unread"), variable([2.0], "f")
    frozen.trainable = False
    optimizer = legacy.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(lambda: ops.sum(read * frozen))
    assert [v for _, v in pairs] == [read]
    pairs = optimizer.compute_gradients(lambda: ops.sum(read), [unread, frozen, read])
    assert [None if g is None else to_numpy(g).tolist() for g, _ in pairs] == [None, None, [1.0]]
    pairs = optimizer.compute_gradients(lambda: ops.sum(read * frozen), frozen)
    assert to_numpy(pairs[0][0]).tolist() == [1.0]


def test_a_variable_that_the_loss_reads_and_ignores_has_no_gradient():
    used, looked_at, stopped = variable([1.0], "a"), variable([5.0], "b"), variable(7.0, "c")
    optimizer = legacy.MomentumOptimizer(0.1, 0.9)

    def loss():
        _ = ops.sum(looked_at)
        return ops.sum(used * used) + 0 * ops.sum(used) + ops.stop_gradient(stopped + 0)

    found = {v.path: g for g, v in optimizer.compute_gradients(loss)}
    assert found["b"] is None and found["c"] is None
    assert to_numpy(found["a"]).tolist() == [2.0]
    zero = optimizer.compute_gradients(lambda: ops.sum(looked_at * ops.zeros(1)))
    assert to_numpy(zero[0][0]).tolist() == [0.0], "computed zeros are a gradient"


def test_each_loss_may_train_other_variables():
    a, b = variable([1.0], "a"), variable([2.0], "b")
    optimizer = legacy.AdamOptimizer(0.1)
    for loss, names in [
        (lambda: ops.sum(b), ["b"]),
        (lambda: ops.sum(a) + ops.sum(b), ["a", "b"]),
        (lambda: ops.sum(a), ["a"]),
    ]:
        pairs = optimizer.compute_gradients(loss)
        assert sorted(v.path for _, v in pairs) == names
        optimizer.apply_gradients(pairs)
    # Variable b joins in the first step, a in the second. Both share one count of steps.
    assert int(optimizer.keras.iterations) == 3
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(a, "m")), [1 - 0.9**2], rtol=1e-5)


def model_with_state():
    keras.utils.set_random_seed(1)
    normalization = keras.layers.BatchNormalization(momentum=0.5)
    dropout = keras.layers.Dropout(0.5, seed=3)
    layers = [keras.layers.Dense(4), normalization, dropout, keras.layers.Dense(1)]
    return keras.Sequential(layers), normalization, dropout


@pytest.mark.parametrize("given", [False, True])
def test_statistics_and_random_seeds_advance_once_a_step(given):
    model, normalization, dropout = model_with_state()  # not built: the first loss builds it
    x = np.random.RandomState(0).randn(8, 3).astype("f")
    outputs = []

    def loss():
        outputs.append(model(x, training=True))
        return ops.mean(ops.square(outputs[-1] - 1.0))

    if given:
        model.build((8, 3))
    optimizer = legacy.GradientDescentOptimizer(0.0)
    seed = 1
    for step in (1, 2):
        optimizer.minimize(loss, var_list=model.trainable_variables if given else None)
        assert to_numpy(dropout.seed_generator.state)[-1] == seed * step
        hidden = x @ to_numpy(model.layers[0].kernel)
        expected = hidden.mean(0) * (1 - 0.5**step)
        np.testing.assert_allclose(to_numpy(normalization.moving_mean), expected, atol=1e-5)
    found = {v.path for _, v in optimizer.compute_gradients(loss)}
    assert found == {v.path for v in model.trainable_variables}


def test_variables_by_name():
    """TensorFlow 1 flattens dictionaries in the order of their keys."""
    a, b = variable([1.0]), variable([2.0])
    optimizer = legacy.GradientDescentOptimizer(0.5)
    pairs = optimizer.compute_gradients(lambda: ops.sum(a * b), {"second": b, "first": [a]})
    assert [v is one for (_, v), one in zip(pairs, (a, b), strict=True)] == [True, True]
    optimizer.minimize(lambda: ops.sum(a * b), var_list={"only": b})
    assert to_numpy(a).tolist() == [1.0]
    assert to_numpy(b).tolist() == [1.5]


def test_grad_loss():
    """`grad_loss` multiplies the gradient of the loss, and must have the shape of the loss."""
    x = variable([1.0, 2.0])
    optimizer = legacy.GradientDescentOptimizer(1.0)
    pairs = optimizer.compute_gradients(lambda: ops.square(x), grad_loss=np.array([10.0, 100.0]))
    assert to_numpy(pairs[0][0]).tolist() == [20.0, 400.0]
    pairs = optimizer.compute_gradients(lambda: ops.square(x))
    assert to_numpy(pairs[0][0]).tolist() == [2.0, 4.0], "a loss that is no scalar is summed"
    optimizer.minimize(lambda: ops.sum(x), grad_loss=0.5)
    assert to_numpy(x).tolist() == [0.5, 1.5]
    with pytest.raises(ValueError, match="`grad_loss`"):
        optimizer.minimize(lambda: ops.sum(x), grad_loss=np.ones(3))
    for wrong in (1j, "a", {}, object()):
        with pytest.raises(TypeError, match="`grad_loss` must be a number"):
            optimizer.minimize(lambda: ops.sum(x), grad_loss=wrong)
    assert to_numpy(x).tolist() == [0.5, 1.5]


@pytest.mark.backends("tensorflow", reason="variables of TensorFlow")
def test_variables_of_tensorflow():
    """A `tf.Variable` may be trained, count steps and be a hyperparameter."""
    import tensorflow as tf

    x, step = tf.Variable([1.0, 2.0], name="x"), tf.Variable(0, dtype=tf.int64, name="step")
    rate = tf.Variable(0.5, trainable=False)
    optimizer = legacy.AdamGSOptimizer(step, rate, beta1=0.0)
    for _ in range(2):
        new = optimizer.minimize(lambda: tf.reduce_sum(x), global_step=step)
    assert int(new) == int(step) == 2
    np.testing.assert_allclose(x.numpy(), [0.0, 1.0], atol=1e-4)
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "m")), [1.0, 1.0])


# ---- Errors --------------------------------------------------------------------------------------


def minimize(**given):
    return lambda o, x: o.minimize(**{"loss": lambda: ops.sum(x), **given})


def apply(pairs, **given):
    return lambda o, x: o.apply_gradients(pairs(x), **given)


ONES = np.ones(2, "f")


@pytest.mark.parametrize(
    ("verb", "error", "match"),
    [
        (minimize(loss=3.0), RuntimeError, "`loss`"),
        (lambda o, x: o.compute_gradients(ops.ones(())), RuntimeError, "`loss`"),
        (minimize(loss=lambda: None), TypeError, "`loss`.*None"),
        (minimize(loss=lambda: ops.ones((), "int32")), ValueError, "`loss`.*int32"),
        (minimize(var_list=[3.0]), ValueError, "`var_list`"),
        (minimize(var_list=3.0), ValueError, "`var_list`"),
        (lambda o, x: o.compute_gradients(lambda: ops.sum(x), [3.0]), TypeError, "`var_list`"),
        (minimize(loss=lambda: ops.ones(())), ValueError, "No gradients provided"),
        (lambda o, x: o.minimize(lambda: ops.ones(()), var_list=[x]), ValueError, "No gradients"),
        (minimize(gate_gradients=7), ValueError, "`gate_grad"),
        (minimize(aggregation_method=7), ValueError, "`aggregation_method`"),
        (minimize(colocate_gradients_with_ops=7), TypeError, "`colocate_gradients_with_ops`"),
        (minimize(global_step=3), TypeError, "`global_step`"),
        (minimize(compiled=3), TypeError, "`compiled`"),
        (apply(lambda x: []), ValueError, "at least one"),
        (apply(lambda x: [(None, x)]), ValueError, "No gradients provided"),
        (apply(lambda x: 3), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [3]), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [(1.0, x, 2)]), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [x]), TypeError, "`grads_and_vars`.*zip"),
        (apply(lambda x: x), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [ONES]), TypeError, "`grads_and_vars`.*zip"),
        (apply(lambda x: [(np.ones(2), x)]), TypeError, "'x'.*float32.*float64"),
        (apply(lambda x: [(ops.ones(2, "float64"), x)]), TypeError, "'x'.*float32.*float64"),
        (apply(lambda x: [(np.ones(2), 3.0)]), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [("g", x)]), TypeError, "'g' for 'x'"),
        (apply(lambda x: [(object(), x)]), TypeError, "`grads_and_vars`"),
        (apply(lambda x: [(np.ones(3, "f"), x)]), ValueError, "shape"),
        (apply(lambda x: [(ONES, x)], global_step=variable([1])), TypeError, "`global_step`"),
        (lambda o, x: o.get_slot(3, "m"), TypeError, "`var`"),
    ],
)
@pytest.mark.parametrize("around", [lambda o: o, legacy.MovingAverageOptimizer])
def test_refused_and_nothing_changed(verb, error, match, around):
    x = variable([1.0, 2.0])
    optimizer = around(legacy.MomentumOptimizer(0.5, 0.9))
    optimizer.minimize(lambda: ops.sum(x))
    before, state = to_numpy(x), [to_numpy(v) for v in optimizer.variables()]
    with pytest.raises(error, match=match):
        verb(optimizer, x)
    np.testing.assert_array_equal(to_numpy(x), before)
    for old, new in zip(state, optimizer.variables(), strict=True):
        np.testing.assert_array_equal(to_numpy(new), old)


def test_global_step_may_be_a_float():
    x, step = variable([1.0, 2.0]), variable(3.0)
    optimizer = legacy.MomentumOptimizer(0.5, 0.9)
    assert float(optimizer.minimize(lambda: ops.sum(x), step)) == float(to_numpy(step)) == 4


# ---- Inside compiled steps of the user ----------------------------------------------------------


@pytest.mark.backends("tensorflow", reason="tf.function is TensorFlow's")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_inside_tf_function(jit_compile):
    """A compiled `minimize` counts steps and moves variables as an eager one does."""
    import tensorflow as tf

    x, step = variable([1.0, 2.0]), counter()
    twin = variable([1.0, 2.0], "twin")
    compiled, plain = legacy.AdamOptimizer(0.1), legacy.AdamOptimizer(0.1)

    @tf.function(jit_compile=jit_compile)
    def train():
        return compiled.minimize(lambda: ops.sum(ops.square(x)), global_step=step)

    for count in (1, 2, 3):
        assert int(train()) == count
        plain.minimize(lambda: ops.sum(ops.square(twin)))
    np.testing.assert_allclose(to_numpy(x), to_numpy(twin), rtol=1e-6)


@pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")
def test_optimizers_of_keras_are_refused_in_graphs():
    import tensorflow as tf

    optimizer = legacy.get("keras.sgd")(0.1)
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="tf.function"):
        optimizer.minimize(lambda: 1.0, var_list=[tf.Variable(1.0)])


@pytest.mark.backends("jax", reason="jax.jit is JAX's")
def test_inside_jax_jit():
    """The verbs refuse a bare `jax.jit`, and the error says what to write instead."""
    import jax

    x, step, twin = variable([1.0, 2.0]), counter(), variable([1.0, 2.0], "twin")
    optimizer, plain = legacy.AdamOptimizer(0.1), legacy.AdamOptimizer(0.1)

    def minimize():
        return optimizer.minimize(lambda: ops.sum(ops.square(x)), global_step=step)

    with pytest.raises(RuntimeError, match="compiled=True"):
        jax.jit(minimize)()
    with pytest.raises(RuntimeError, match="StatelessScope"):
        jax.jit(lambda: optimizer.apply_gradients([(np.ones(2, "f"), x)]))()
    assert to_numpy(x).tolist() == [1.0, 2.0] and int(step) == 0

    with keras.StatelessScope(), pytest.raises(RuntimeError, match="`build`"):
        minimize()
    with pytest.raises(RuntimeError, match="compiled=True"):
        jax.jit(lambda: legacy.MovingAverageOptimizer(plain).minimize(lambda: ops.sum(x)))()

    optimizer.keras.build([x])
    state = [x, step, *optimizer.keras.variables]

    @jax.jit
    def train(values):
        with keras.StatelessScope(list(zip(state, values, strict=True))) as scope:
            minimize()
        return [scope.get_current_value(v) for v in state]

    values = [v.value for v in state]
    for _ in range(3):
        values = train(values)
        plain.minimize(lambda: ops.sum(ops.square(twin)))
    np.testing.assert_allclose(values[0], to_numpy(twin), rtol=1e-6)
    assert int(values[1]) == 3


@pytest.mark.backends("torch", reason="torch.compile is PyTorch's")
def test_inside_torch_compile():
    """`minimize` works in a function that `torch.compile` compiles."""
    import torch

    x = variable([1.0, 2.0])
    optimizer = legacy.GradientDescentOptimizer(0.25)
    train = torch.compile(lambda: optimizer.minimize(lambda: ops.sum(ops.square(x))))
    train()
    train()
    np.testing.assert_allclose(to_numpy(x), [0.25, 0.5])


@pytest.mark.backends("jax", "torch", reason="there, graphs work")
def test_variables_of_another_backend_are_refused():
    tf = pytest.importorskip("tensorflow")
    optimizer, x = legacy.AdamOptimizer(), tf.Variable([1.0])
    with pytest.raises(TypeError, match="KERAS_BACKEND=tensorflow"):
        optimizer.apply_gradients([(np.ones(1, "f"), x)])
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        optimizer.minimize(lambda: 1.0, var_list=[x])
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="KERAS_BACKEND=tensorflow"):
        optimizer.minimize(tf.constant(1.0))
