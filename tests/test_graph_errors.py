"""Errors of `minimize` and the other methods in graphs. They create no variables."""

import pytest

from keras_tfopt import legacy
from tests.helpers.graphs import MAKE, eagerly, every_kind, session, tensor, tf, v1, variable

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")


def test_variables_of_another_graph():
    with tf.Graph().as_default():
        theirs = variable([1.0], "theirs")
    with eagerly():
        eager = tf.Variable([1.0])
    optimizers = [
        legacy.AdamOptimizer(),
        legacy.AdamWOptimizer(0.1),
        legacy.MovingAverageOptimizer(v1.train.AdamOptimizer()),
    ]
    with session():
        x = variable([1.0], "x")
        for optimizer in optimizers:
            with pytest.raises(ValueError, match="'theirs:0', which belongs to another graph"):
                optimizer.apply_gradients([(tensor([1.0]), x), (tensor([1.0]), theirs)])
            with pytest.raises(ValueError, match="which belongs to no graph"):
                optimizer.apply_gradients([(tensor([1.0]), eager)])
            assert optimizer.variables() == []
    for optimizer in optimizers:
        with eagerly(), pytest.raises(ValueError, match="another graph"):
            optimizer.apply_gradients([(tensor([1.0]), theirs)])


def test_hyperparameters_of_another_graph():
    with tf.Graph().as_default():
        rate, momentum = tf.constant(0.1), variable(0.9, "momentum")
    for optimizer in (legacy.MomentumOptimizer(rate, 0.9), legacy.MomentumOptimizer(0.1, momentum)):
        with session(), pytest.raises(ValueError, match="belongs to another graph"):
            optimizer.apply_gradients([(tensor([1.0]), variable([1.0], "x"))])
        with eagerly(), pytest.raises(ValueError, match="belongs to another graph"):
            optimizer.apply_gradients([(tensor([1.0]), tf.Variable([1.0]))])


def test_a_loss_that_is_a_tensor_eagerly():
    with eagerly():
        x = tf.Variable([1.0])
        for make in MAKE.values():
            with pytest.raises(RuntimeError, match="`loss` must be a function"):
                make().minimize(tf.reduce_sum(x * x), var_list=[x])


@every_kind
@pytest.mark.parametrize("name", ["Adam", "GGT", "averages"])
def test_integer_variables_are_refused(name, kind):
    with session():
        x = variable([1, 2], "x", kind, "int32")
        optimizer = MAKE[name]()
        with pytest.raises(ValueError, match=r"Invalid type.*int32.*x:0"):
            optimizer.apply_gradients([(tensor([1, 1], "int32"), x)])


@pytest.mark.parametrize(
    ("act", "error", "match"),
    [
        (lambda o, x, g: o.minimize(x * x, var_list=[]), ValueError, "No variables"),
        (lambda o, x, g: o.minimize(x * x, var_list=[3.0]), ValueError, "`var_list`.*3.0"),
        (lambda o, x, g: o.minimize(x * x, var_list="x"), ValueError, "`var_list`"),
        (lambda o, x, g: o.compute_gradients(x * x, [None]), TypeError, "`var_list`"),
        (lambda o, x, g: o.apply_gradients([]), ValueError, "no variables"),
        (lambda o, x, g: o.apply_gradients([(None, x)]), ValueError, "No gradients provided"),
        (lambda o, x, g: o.minimize(g, var_list=[x]), ValueError, "No gradients provided"),
        (lambda o, x, g: o.minimize(lambda: g, var_list=[x]), ValueError, "No gradients provided"),
        (lambda o, x, g: o.apply_gradients([(g, 3.0)]), TypeError, "3.0"),
        (lambda o, x, g: o.apply_gradients([("g", x)]), TypeError, "'g'"),
        (lambda o, x, g: o.apply_gradients([(tensor([1.0, 2.0]), x)]), ValueError, "shape"),
        (lambda o, x, g: o.apply_gradients([(g, x)], global_step=3), TypeError, "`global_step`"),
        (lambda o, x, g: o.minimize(x * x, aggregation_method=7), ValueError, "aggregation"),
        (lambda o, x, g: o.get_slot("x", "m"), TypeError, "`var`"),
        (lambda o, x, g: o.minimize(x * x, inputs=(1.0,)), TypeError, "`loss` is a function"),
        (lambda o, x, g: o.keras, RuntimeError, "eager"),
    ],
)
@pytest.mark.parametrize("name", ["Adam", "GGT"])
def test_verbs_refuse(name, act, error, match):
    with session():
        x = variable([1.0], "x")
        optimizer = MAKE[name]()
        with pytest.raises(error, match=match):
            act(optimizer, x, tensor([1.0]))
        assert len(v1.global_variables()) == 1


@pytest.mark.parametrize("where", ["graph", "eager"])
def test_tensors_have_gradients_but_cannot_be_trained(where):
    with tf.Graph().as_default() if where == "graph" else eagerly():
        x = tf.convert_to_tensor(3.0)
        optimizer = legacy.GradientDescentOptimizer(3.0)
        [(g, same)] = optimizer.compute_gradients(lambda: x * x, [x])
        assert same is x
        assert (v1.Session().run(g) if where == "graph" else float(g)) == 6.0
        with pytest.raises(NotImplementedError, match="tensor"):
            optimizer.apply_gradients([(g, x)])
        with pytest.raises(NotImplementedError, match="tensor"):
            optimizer.minimize(lambda: x * x, var_list=[x])
