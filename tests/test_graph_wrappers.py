"""Wrappers, decay and savers in graphs, around our optimizers and TensorFlow's.

test_graph_recordings.py and test_legacy_compositions.py compare their numbers with recordings.
"""

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.helpers.graphs import (
    DTYPES,
    assert_close,
    counter,
    every_kind,
    rows,
    session,
    start,
    tensor,
    tf,
    v1,
    variable,
)

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

MODULES = {"ours": legacy, "stock": v1.train}


# ---- VariableClippingOptimizer -------------------------------------------------------------------


def test_clipping_on_another_device():
    cluster = v1.train.ClusterSpec({"worker": ["localhost:0"]})
    server = v1.train.Server(cluster, job_name="worker", start=True)
    with tf.Graph().as_default(), v1.Session(server.target) as sess:
        with v1.device("/job:worker/task:0/cpu:0"):
            x = variable([[3.0, 4.0]], "x")
        sgd = v1.train.GradientDescentOptimizer(0.0)
        clip = legacy.VariableClippingOptimizer(
            sgd, {x: [1]}, 1.0, use_locking=True, colocate_clip_ops_with_vars=True
        )
        train = clip.apply_gradients([(tensor([[1.0, 1.0]]), x)])
        start(sess)
        sess.run(train)
        assert_close(sess.run(x), [[0.6, 0.8]])


# ---- MovingAverageOptimizer ----------------------------------------------------------------------


def average_of(x):
    return next(v for v in v1.global_variables() if v.op.name == f"{x.op.name}/{AVERAGE}")


AVERAGE = "ExponentialMovingAverage"


@pytest.mark.parametrize("module", MODULES)
@every_kind
def test_averages_and_their_saver(kind, module, tmp_path):
    for dtype in DTYPES:
        with session() as sess:
            x, y = variable([1.0, 2.0], "x", kind, dtype), variable([3.0], "y", kind, dtype)
            sgd = MODULES[module].GradientDescentOptimizer(2.0)
            optimizer = legacy.MovingAverageOptimizer(sgd, average_decay=0.5)
            g = [tensor([0.1, 0.1], dtype), tensor([0.01], dtype)]
            train = optimizer.apply_gradients(list(zip(g, [x, y], strict=True)))
            both, plain = optimizer.swapping_saver(), v1.train.Saver()
            assert isinstance(both, v1.train.Saver)
            some = optimizer.swapping_saver(var_list=[x, average_of(x)], name="some")
            named = {"a": x, "b": average_of(x)}
            renamed = optimizer.swapping_saver(named, name="renamed", max_to_keep=1)
            start(sess)
            state = [x, average_of(x), y, average_of(y)]
            assert_close(sess.run(average_of(x)), [1.0, 2.0], dtype)
            sess.run(train)
            trained = [[0.8, 1.8], [0.9, 1.9], [2.98], [2.99]]
            for value, expected in zip(sess.run(state), trained, strict=True):
                assert_close(value, expected, dtype)
            # The swapping saver writes averages under the names of the variables.
            path = both.save(sess, str(tmp_path / f"{kind}_{dtype}"))
            plain.restore(sess, path)
            swapped = [trained[i] for i in (1, 0, 3, 2)]
            for value, expected in zip(sess.run(state), swapped, strict=True):
                assert_close(value, expected, dtype)
            both.restore(sess, path)
            part = some.save(sess, str(tmp_path / "part"))
            sess.run([v1.assign_add(v, tf.ones_like(v)) for v in state])
            some.restore(sess, part)
            for value, expected, more in zip(sess.run(state), trained, (0, 0, 1, 1), strict=True):
                assert_close(value, np.add(expected, more), dtype)
            file = v1.train.NewCheckpointReader(renamed.save(sess, str(tmp_path / "renamed")))
            assert_close(file.get_tensor("a"), trained[1], dtype)
            assert_close(file.get_tensor("b"), trained[0], dtype)


@every_kind
def test_averages_of_partitioned_variables(kind, tmp_path):
    with session() as sess:
        x = v1.get_variable(
            "x",
            initializer=tf.constant([[1.0], [2.0], [3.0]]),
            partitioner=v1.fixed_size_partitioner(2),
            use_resource=kind == "resource",
        )
        optimizer = legacy.MovingAverageOptimizer(legacy.GradientDescentOptimizer(1.0), 0.5)
        train = optimizer.minimize(tf.reduce_sum(tf.convert_to_tensor(x)))
        averages = [optimizer.get_slot(part, "average") for part in x]
        some = optimizer.swapping_saver([x, *averages], name="some")
        saver, plain = optimizer.swapping_saver(), v1.train.Saver()
        start(sess)
        sess.run(train)
        file = v1.train.NewCheckpointReader(some.save(sess, str(tmp_path / "some")))
        assert_close(file.get_tensor("x"), [[0.5], [1.5], [2.5]])
        assert_close(file.get_tensor(f"x/{AVERAGE}"), [[0.0], [1.0], [2.0]])
        path = saver.save(sess, str(tmp_path / "model"))
        file = v1.train.NewCheckpointReader(path)
        assert_close(file.get_tensor("x"), [[0.5], [1.5], [2.5]])
        plain.restore(sess, path)
        assert_close(sess.run(tf.convert_to_tensor(x)), [[0.5], [1.5], [2.5]])
        saver.restore(sess, path)
        assert_close(sess.run(tf.convert_to_tensor(x)), [[0.0], [1.0], [2.0]])


@every_kind
def test_savers_that_cannot_swap(kind):
    with session():
        x, y = variable([1.0], "x", kind), variable([1.0], "y", kind)
        optimizer = legacy.MovingAverageOptimizer(v1.train.GradientDescentOptimizer(2.0))
        with pytest.raises(RuntimeError, match="before"):
            optimizer.swapping_saver([x])
        optimizer.minimize(tf.reduce_sum(x * x) + tf.reduce_sum(y), var_list=[x])
        for var_list in ([x], [average_of(x)], {"a": x}):
            with pytest.raises(ValueError, match="Variable to swap"):
                optimizer.swapping_saver(var_list=var_list)
        with pytest.raises(TypeError, match="max_keep"):
            optimizer.swapping_saver(max_keep=1)
        optimizer.swapping_saver([y])  # has no average
        with tf.Graph().as_default(), pytest.raises(RuntimeError, match="before"):
            optimizer.swapping_saver()


class Doubling(v1.train.GradientDescentOptimizer):
    """An optimizer of TensorFlow with methods of its own."""

    def compute_gradients(self, *args, **kwargs):
        return [(2 * g, v) for g, v in super().compute_gradients(*args, **kwargs)]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        changed = [(g + 1, v) for g, v in grads_and_vars]
        return super().apply_gradients(changed, global_step, name)


AROUND = {
    "averages": lambda optimizer, x: legacy.MovingAverageOptimizer(optimizer),
    "clipping": lambda optimizer, x: legacy.VariableClippingOptimizer(optimizer, {x: []}, 1e6),
    "multitask": lambda optimizer, x: legacy.MultitaskOptimizerWrapper(optimizer),
    "two": lambda optimizer, x: legacy.MultitaskOptimizerWrapper(
        legacy.MovingAverageOptimizer(optimizer, 0.5)
    ),
}


@pytest.mark.parametrize("around", AROUND)
@every_kind
def test_methods_of_the_optimizer_inside_are_called(kind, around):
    with session() as sess:
        x, count = variable([1.2], "x", kind), counter(kind)
        optimizer = AROUND[around](Doubling(2.0), x)
        assert isinstance(optimizer, v1.train.Optimizer)
        train = optimizer.minimize(tf.reduce_sum(x**2), global_step=count)
        start(sess)
        sess.run(train)
        assert_close(sess.run(x), [1.2 - 2 * (2 * 2.4 + 1)])
        assert sess.run(count) == 1
        if around == "two":
            assert_close(sess.run(average_of(x)), [(1.2 + 1.2 - 2 * (2 * 2.4 + 1)) / 2])


@pytest.mark.parametrize("around", AROUND)
def test_state_of_the_optimizer_inside_is_found(around):
    with session():
        x = variable([1.0], "x")
        optimizer = AROUND[around](v1.train.AdamOptimizer(), x)
        optimizer.minimize(tf.reduce_sum(x**2))
        assert {"m", "v"} <= set(optimizer.get_slot_names())
        assert optimizer.get_slot(x, "m").op.name == "x/Adam"
        names = {v.op.name for v in optimizer.variables()}
        scope = "VariableClipping/" if around == "clipping" else ""  # as in TensorFlow 1
        powers = {f"{scope}beta1_power", f"{scope}beta2_power"}
        assert {"x/Adam", "x/Adam_1", *powers} <= names
        with tf.Graph().as_default():
            assert optimizer.variables() == []


@pytest.mark.parametrize("name", [None, "train"])
def test_names_of_the_operation_of_a_step(name):
    """Programs fetch it by its name from a graph that they import."""
    inner = legacy.GradientDescentOptimizer(0.1)
    names = {
        legacy.MovingAverageOptimizer: "train_with_avg",
        legacy.MultitaskOptimizerWrapper: name or "GradientDescent",
        lambda opt: legacy.VariableClippingOptimizer(opt, {"x": [0]}, 1.0): (
            name or "VariableClipping"
        ),
    }
    for make, expected in names.items():
        with session():
            x = variable([1.0], "x")
            optimizer = make(inner)
            pairs = optimizer.compute_gradients(tf.reduce_sum(x**2))
            assert optimizer.apply_gradients(pairs, name=name).name == expected


# ---- MultitaskOptimizerWrapper -------------------------------------------------------------------


def test_clipping_pairs_by_their_norm():
    with session() as sess:
        variables = [variable([3.0, 4.0]) for _ in range(4)]
        given = [tensor([10.0, 15.0]), rows([5.0], [1], [2]), tensor([0.0, 0.0]), None]
        pairs, norm = legacy.clip_gradients_by_global_norm(
            zip(given, variables, strict=True), clip_norm=1.0
        )
        expected = np.sqrt(100 + 225 + 25)
        start(sess)
        assert_close(sess.run(norm), expected)
        assert [v is w for (_, v), w in zip(pairs, variables, strict=True)] == [True] * 4
        assert_close(sess.run(pairs[0][0]), np.array([10.0, 15.0]) / expected)
        assert_close(sess.run(pairs[1][0].values), [5 / expected])
        assert sess.run(pairs[2][0]).tolist() == [0.0, 0.0]
        assert pairs[3][0] is None
        train = legacy.GradientDescentOptimizer(1.0).apply_gradients(pairs)
        sess.run(train)
        assert_close(sess.run(variables[1]), [3.0, 4.0 - 5 / expected])


# ---- Decoupled weight decay ----------------------------------------------------------------------


@every_kind
def test_decay_in_every_form(kind):
    with session() as sess:
        decays = [
            0.5,
            tf.constant(0.5),
            lambda: 0.5,
            variable(0.5, kind=kind, trainable=False),
            v1.placeholder_with_default(np.float32(0.5), []),
        ]
        ours = [variable([4.0], kind=kind) for _ in decays]
        train = [
            legacy.MomentumWOptimizer(decay, 1.0, 0.0).minimize(tf.reduce_sum(x), var_list=[x])
            for decay, x in zip(decays, ours, strict=True)
        ]
        start(sess)
        sess.run(train)
        assert [float(value[0]) for value in sess.run(ours)] == [1.0] * 5


def test_the_extension_as_a_base_class():
    class Decayed(legacy.DecoupledWeightDecayExtension, v1.train.GradientDescentOptimizer):
        def __init__(self, weight_decay, *args, **kwargs):
            super().__init__(weight_decay, *args, **kwargs)

    with session() as sess:
        x, y, count = variable([4.0], "x"), variable([4.0], "y"), counter()
        optimizer = Decayed(0.25, learning_rate=1.0)
        train = optimizer.minimize(x + y, global_step=count, decay_var_list=[x])
        assert isinstance(train, tf.Operation)
        start(sess)
        sess.run(train)
        assert sess.run([x, y, count]) == [[2.0], [3.0], 1]


@pytest.mark.parametrize("is_graph", [True, False], ids=["graph", "eager"])
def test_decay_around_optimizers_with_attributes_of_any_name(is_graph):
    """TensorFlow's RMSProp has a `_decay`, a number."""

    def end(module, steps=3):
        cls = legacy.extend_with_decoupled_weight_decay(module.RMSPropOptimizer)
        optimizer = cls(weight_decay=0.01, learning_rate=0.05, momentum=0.5)
        if not is_graph:
            x = tf.Variable([1.0, 2.0])
            for _ in range(steps):
                optimizer.minimize(lambda: tf.reduce_sum(x**2), var_list=[x])
            return x.numpy()
        with session() as sess:
            x = variable([1.0, 2.0])
            train = optimizer.minimize(tf.reduce_sum(x**2))
            start(sess)
            for _ in range(steps):
                sess.run(train)
            return sess.run(x)

    # From TensorFlow 1.15.5.
    recorded = [0.6474916338920593, 1.4973437786102295]
    for module in MODULES.values():
        np.testing.assert_allclose(end(module), recorded, rtol=1e-6)


# ---- Functions -----------------------------------------------------------------------------------


def test_matrix_functions_are_tensors_of_the_graph():
    factor = np.random.RandomState(0).rand(20, 25)
    matrix = factor @ factor.T
    values, vectors = np.linalg.eigh(matrix)
    with session() as sess:
        root = legacy.matrix_square_root(matrix, 20)
        inverse = legacy.matrix_inverse_pth_root(tf.constant(matrix), 20, -0.125)
        assert_close(sess.run(root), (vectors * np.sqrt(values)) @ vectors.T, factor=1e5)
        assert_close(sess.run(inverse), (vectors * values**-0.125) @ vectors.T, factor=1e5)
