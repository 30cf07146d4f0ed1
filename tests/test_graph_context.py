"""Where steps of TensorFlow 1 stand: in control flow, functions, sessions, other optimizers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tfopt import legacy
from tests.stepping import BACKEND

if BACKEND != "tensorflow":
    pytest.skip("graphs of TensorFlow 1 are TensorFlow's", allow_module_level=True)

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tests.graphs import (
    KINDS,
    assert_close,
    counter,
    eagerly,
    rows,
    session,
    start,
    tensor,
    v1,
    variable,
)

ROOT = Path(__file__).parents[1]
MAKE = {
    "Adam": lambda: legacy.AdamOptimizer(0.1),
    "LARS": lambda: legacy.LARSOptimizer(0.5, eeta=0.5),
    "GGT": lambda: legacy.GGTOptimizer(0.1, window=2),
    "averages": lambda: legacy.MovingAverageOptimizer(legacy.NadamOptimizer(0.1), 0.5),
    "multitask": lambda: legacy.MultitaskOptimizerWrapper(legacy.MomentumOptimizer(0.1, 0.9)),
    "decay": lambda: legacy.AdamWOptimizer(0.01, 0.1),
}


def straight(make, steps, kind="resource"):
    """What a variable becomes in steps that are nothing but run."""
    with session() as sess:
        x = variable([1.0, -2.0], "x", kind)
        train = make().minimize(tf.reduce_sum(x**2), var_list=[x])
        start(sess)
        for _ in range(steps):
            sess.run(train)
        return sess.run(x)


# ---- Control flow --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "flow"),
    # The later control flow cannot assign to reference variables, whoever builds the step.
    [("resource", "later"), ("resource", "of version 1"), ("reference", "of version 1")],
)
@pytest.mark.parametrize("name", MAKE)
def test_steps_in_a_branch(name, kind, flow, monkeypatch):
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", flow == "later")
    with session() as sess:
        x, acts = variable([1.0, -2.0], "x", kind), v1.placeholder("bool", [])
        optimizer = MAKE[name]()

        def step():
            with tf.control_dependencies([optimizer.minimize(tf.reduce_sum(x**2), var_list=[x])]):
                return tf.constant(1)

        train = v1.cond(acts, step, lambda: tf.constant(0))
        start(sess)
        for taken in (True, False, True):
            assert sess.run(train, {acts: taken}) == taken
        assert_close(sess.run(x), straight(MAKE[name], 2))
        assert {v.op.name for v in optimizer.variables()}.isdisjoint({"x"})
        assert len(optimizer.variables()) > 0


@pytest.mark.parametrize("flow", ["later", "of version 1"])
@pytest.mark.parametrize("name", ["Adam", "LARS", "decay"])
def test_steps_in_a_loop(name, flow, monkeypatch):
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", flow == "later")
    with session() as sess:
        x = variable([1.0, -2.0], "x")
        optimizer = MAKE[name]()

        def body(i):
            step = optimizer.minimize(lambda: tf.reduce_sum(x**2), var_list=[x])
            with tf.control_dependencies([step]):
                return i + 1

        train = v1.while_loop(lambda i: i < 4, body, [0])
        start(sess)
        assert sess.run(train) == 4
        assert_close(sess.run(x), straight(MAKE[name], 4))


@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize("name", ["Adam", "LARS"])
def test_steps_in_a_function(name, compiler):
    with eagerly():
        x, count = tf.Variable([1.0, -2.0]), tf.Variable(0)
        optimizer = MAKE[name]()

        def loss():
            return tf.reduce_sum(x**2)

        @tf.function(jit_compile=compiler)
        def step():
            optimizer.minimize(loss, global_step=count, var_list=[x])

        step()
        optimizer.minimize(loss, count)
        step()
        step()
        assert int(count) == 4
        value = x.numpy()
    assert_close(value, straight(MAKE[name], 4))


@pytest.mark.parametrize("inside", [False, True])
def test_reg_adagrad_is_told_in_functions(inside):
    """By one compiled step for both; or by a context within the function."""
    with eagerly():
        x, optimizer = tf.Variable([1.0]), legacy.RegAdagradOptimizer(0.1, 0.25)

        def step():
            optimizer.apply_gradients([(tf.constant([0.5]), x)])

        def told():
            with optimizer.avoid_updating_slots():
                step()

        learns = tf.function(step)
        rests = tf.function(told) if inside else told
        step = step if inside else learns
        learns()
        assert optimizer.get_slot(x, "accumulator").numpy().tolist() == [0.5]
        for _ in range(2):
            rests()
        assert optimizer.get_slot(x, "accumulator").numpy().tolist() == [0.5]
        learns()
        assert optimizer.get_slot(x, "accumulator").numpy().tolist() == [0.75]


@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: legacy.GradientDescentOptimizer(0.1),  # counts no steps
        lambda: legacy.MomentumOptimizer(0.1, 0.9),
        lambda: legacy.AdamOptimizer(0.1),
    ],
)
def test_steps_in_a_function_and_of_keras_go_on_from_each_other(make, compiler):
    def function():
        return tf.function(
            lambda: optimizer.minimize(lambda: tf.reduce_sum(x.value**2), var_list=[x]),
            jit_compile=compiler,
        )

    with eagerly():
        x, optimizer = keras.Variable([1.0, -2.0]), make()
        step = function()
        step()
        assert int(optimizer.keras.iterations) == 1
        step()
        eager, y = make(), tf.Variable([1.0, -2.0])
        for _ in range(2):
            eager.minimize(lambda: tf.reduce_sum(y**2), var_list=[y])
        for slot in eager.get_slot_names():
            assert_close(optimizer.get_slot(x, slot).numpy(), eager.get_slot(y, slot).numpy())
        made = optimizer.keras
        assert int(made.iterations) == 2
        made.apply([2 * x], [x])
        function()()  # is traced after it
        assert int(optimizer.keras.iterations) == 4
        value = x.numpy()
        made.apply([2 * x], [x])
        step()  # was traced before it
        with pytest.raises(RuntimeError, match="so that neither has the whole state"):
            optimizer.variables()
    assert_close(value, straight(make, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_operations(kind):
    with session() as sess:
        x, g = variable([1.0], "x", kind), variable([0.0], "g", kind, trainable=False)
        count = counter(kind)
        with tf.control_dependencies([v1.assign(g, [3.0])]):
            gradient = tf.identity(g) + 0.0
        train = legacy.MomentumOptimizer(1.0, 0.0).apply_gradients([(gradient, x)], count)
        with tf.control_dependencies([train]):
            after = [tf.identity(x.read_value()), tf.identity(count.read_value())]
        start(sess)
        assert sess.run(after) == [[-2.0], 1]
        assert sess.run(after) == [[-5.0], 2]


# ---- Arguments of the verbs ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", ["GATE_NONE", "GATE_OP", "GATE_GRAPH"])
def test_gates(gate, kind):
    optimizer = legacy.LazyAdamOptimizer(0.1)
    with session() as sess:
        x, y = variable([[1.0], [2.0]], "x", kind), variable([3.0], "y", kind)
        loss = tf.reduce_sum(tf.gather(x, [1, 1]) ** 2 * y)
        pairs = optimizer.compute_gradients(loss, gate_gradients=getattr(optimizer, gate))
        assert isinstance(pairs[0][0], tf.IndexedSlices)
        assert [v for _, v in pairs] == [x, y] or [v is w for (_, v), w in zip(pairs, (x, y))]
        train = optimizer.minimize(loss, gate_gradients=getattr(optimizer, gate))
        start(sess)
        gx, gy = sess.run([tf.convert_to_tensor(pairs[0][0]), pairs[1][0]])
        assert gx.tolist() == [[0.0], [24.0]] and gy.tolist() == [8.0]
        sess.run(train)
        assert_close(sess.run(x), [[1.0], [1.9]])
        assert_close(sess.run(y), [2.9])
        with pytest.raises(ValueError, match="gate_gradients"):
            optimizer.minimize(loss, gate_gradients="GATE_OP")


@pytest.mark.parametrize("kind", KINDS)
def test_weight_of_the_loss_and_how_gradients_are_added(kind):
    with session() as sess:
        x, y = variable([1.0, 2.0], "x", kind), variable([3.0, 4.0], "y", kind)
        train = legacy.GradientDescentOptimizer(3.0).minimize(
            5 * x + 3 * y + x * 0,
            None,
            [x, (y,)],
            aggregation_method=tf.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N,
            colocate_gradients_with_ops=True,
            name="step",
            grad_loss=tensor([42.0, -42.0]),
        )
        assert train.name == "step"
        start(sess)
        sess.run(train)
        assert_close(sess.run(x), [1 - 3 * 5 * 42.0, 2 + 3 * 5 * 42.0])
        assert_close(sess.run(y), [3 - 3 * 3 * 42.0, 4 + 3 * 3 * 42.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_counts_of_steps(dtype, kind):
    with session() as sess:
        count = variable(7, "count", kind, dtype, trainable=False)
        x = variable([1.0], "x", kind)
        train = legacy.MomentumOptimizer(1.0, 0.5).minimize(tf.reduce_sum(x), count)
        common = legacy.AdamGSOptimizer(v1.train.get_or_create_global_step()).minimize(
            tf.reduce_sum(x), v1.train.get_global_step()
        )
        start(sess)
        sess.run([train, common])
        sess.run(train)
        assert sess.run(count) == 9
        assert sess.run(v1.train.get_global_step()) == 1


def test_locks_are_taken_by_assignments():
    for locking in (False, True):
        with session():
            x = variable([[1.0], [2.0]], "x", "reference")
            optimizer = legacy.LazyAdamOptimizer(use_locking=locking)
            optimizer.apply_gradients([(tensor([[1.0], [1.0]]), x)])
            optimizer.apply_gradients([(rows([[1.0]], [0]), x)])
            graph = v1.get_default_graph()
            initializers = {v.initializer.name for v in v1.global_variables()}
            found = [
                op.get_attr("use_locking")
                for op in graph.get_operations()
                if op.type in ("Assign", "ScatterUpdate") and op.name not in initializers
            ]
            assert len(found) == 10 and set(found) == {locking}


# ---- Variables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["AdamOptimizer", "AdagradOptimizer"])
def test_partitioned_variables(name, kind):
    def train(module):
        with session() as sess:
            x = v1.get_variable(
                "x",
                initializer=tf.constant(np.arange(10.0, dtype="float32").reshape(5, 2)),
                partitioner=v1.fixed_size_partitioner(2),
                use_resource=kind == "resource",
            )
            optimizer = getattr(module, name)(0.1)
            loss = tf.reduce_sum(tf.nn.embedding_lookup(x, [0, 3, 3]) ** 2)
            step = optimizer.minimize(loss)
            start(sess)
            for _ in range(3):
                sess.run(step)
            sliced = {
                v.op.name: v._save_slice_info.spec for v in v1.global_variables() if v.shape.rank
            }
            return sess.run(tf.convert_to_tensor(x)), sliced

    (value, sliced), (expected, names) = train(legacy), train(v1.train)
    assert_close(value, expected)
    assert sliced == names and len(sliced) == (6 if name == "AdamOptimizer" else 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Adam", "decay", "multitask"])
def test_constraints(name, kind):
    with session() as sess:
        x = variable(
            [0.5, -0.5], "x", kind, constraint=lambda value: tf.clip_by_value(value, -0.1, 0.2)
        )
        train = MAKE[name]().apply_gradients([(tensor([1.0, -1.0]), x)])
        start(sess)
        sess.run(train)
        assert_close(sess.run(x), [0.2, -0.1])


REPLICAS = """
import json, sys
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_tfopt import legacy

def train(make):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        x, optimizer = tf.Variable([1.0, -2.0]), make()

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            weight = tf.cast(context.replica_id_in_sync_group, "float32") + 1
            optimizer.minimize(lambda: tf.reduce_sum(x ** 2) * weight)
        strategy.run(replica)

    for _ in range(3):
        step()
    return x.numpy().tolist(), len(optimizer.variables())

v1 = tf.compat.v1.train
print(json.dumps([
    train(lambda: legacy.AdamOptimizer(0.1)), train(lambda: v1.AdamOptimizer(0.1)),
    train(lambda: legacy.MomentumOptimizer(0.1, 0.9)),
    train(lambda: v1.MomentumOptimizer(0.1, 0.9)),
]))
"""


def test_replicas():
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    adam, stock_adam, momentum, stock_momentum = json.loads(done.stdout.splitlines()[-1])
    for (value, count), (expected, stock_count) in (
        (adam, stock_adam),
        (momentum, stock_momentum),
    ):
        assert_close(value, expected)
        assert count == stock_count


# ---- Checkpoints, sessions, other optimizers -----------------------------------------------------


@pytest.mark.parametrize("where", ["graph", "eager"])
@pytest.mark.parametrize("name", ["Adam", "GGT"])
def test_checkpoints_of_objects(name, where, tmp_path):
    def train(sess, restored):
        x = v1.Variable([1.0, -2.0], name="x", use_resource=True)
        optimizer = MAKE[name]()
        checkpoint = v1.train.Checkpoint(x=x, optimizer=optimizer)
        if restored:
            status = checkpoint.restore(restored)
        step = lambda: optimizer.minimize(lambda: tf.reduce_sum(x**2), var_list=[x])  # noqa: E731
        if sess is None:
            for _ in range(2):
                step()
        else:
            operation = step()
            start(sess)
            if restored:
                status.initialize_or_restore(sess)
            for _ in range(2):
                sess.run(operation)
        path = checkpoint.save(str(tmp_path / "model"), session=sess)
        return (x.numpy() if sess is None else sess.run(x)), path

    def once(restored=None):
        with eagerly() if where == "eager" else session() as sess:
            return train(sess, restored)

    _, path = once()
    value, _ = once(path)
    assert_close(value, straight(MAKE[name], 4), factor=10)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (4, 1)])
@pytest.mark.parametrize("more", [{}, {"svd_interval": 2}, {"max_matrix_size": 2}])
def test_checkpoints_of_objects_with_slots_of_other_shapes(shape, more, tmp_path):
    """Slots of Shampoo, which are restored before a step has made them."""

    def train(steps, restored=None):
        with eagerly():
            x = tf.Variable(np.arange(1.0, 1 + np.prod(shape)).reshape(shape), name="x")
            count = tf.Variable(0, dtype="int64", trainable=False)
            optimizer = legacy.ShampooOptimizer(count, learning_rate=0.1, **more)
            checkpoint = tf.train.Checkpoint(x=x, count=count, optimizer=optimizer)
            status = checkpoint.restore(restored)
            for _ in range(steps):
                optimizer.minimize(lambda: tf.reduce_sum(x**2), count, [x])
            if restored:
                status.assert_consumed()
            return x.numpy(), checkpoint.save(str(tmp_path / "model"))

    _, path = train(2)
    np.testing.assert_allclose(train(1, path)[0], train(3)[0], rtol=1e-12)


def test_a_session_that_is_monitored_goes_on(tmp_path):
    def train(steps):
        with tf.Graph().as_default():
            x, count = variable([1.0, -2.0], "x"), v1.train.get_or_create_global_step()
            step = legacy.AdamOptimizer(0.1).minimize(tf.reduce_sum(x**2), count)
            hooks = [v1.train.StopAtStepHook(last_step=steps)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=1
            ) as sess:
                while not sess.should_stop():
                    sess.run(step)
        return v1.train.load_checkpoint(str(tmp_path)).get_tensor("x")

    train(2)
    value = train(5)
    assert_close(value, straight(MAKE["Adam"], 5))


def test_a_scaled_loss():
    scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    with session() as sess:
        x, y = variable([1.0, -2.0], "x"), v1.placeholder_with_default(1.0, [])
        optimizer = scaled(legacy.AdamOptimizer(0.1), v1.mixed_precision.DynamicLossScale(128.0))
        train = optimizer.minimize(tf.reduce_sum(x**2) * y)
        start(sess)
        for factor in (1.0, np.inf, 1.0):
            sess.run(train, {y: factor})
        assert_close(sess.run(x), straight(MAKE["Adam"], 2))


# Stopping, a thread of TensorFlow ends by an exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_replicas_in_step():
    with tf.Graph().as_default():
        x, count = variable([1.0, -2.0], "x"), v1.train.get_or_create_global_step()
        optimizer = v1.train.SyncReplicasOptimizer(
            legacy.AdamOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=1
        )
        step = optimizer.minimize(tf.reduce_sum(x**2), count)
        hooks = [optimizer.make_session_run_hook(True), v1.train.StopAtStepHook(num_steps=3)]
        # Its threads wait for ever for further workers.
        with v1.train.MonitoredTrainingSession(hooks=hooks, stop_grace_period_secs=1) as sess:
            values = [sess.run([step, x])[1] for _ in range(4)]
        assert optimizer.get_slot(x, "m").op.name == "x/Adam"
        # A thread of its own applies what has been gathered, some time later.
        path = [straight(MAKE["Adam"], steps) for steps in range(1, 5)]
        assert any(np.allclose(values[-1], value, atol=1e-6) for value in path)


# ---- Bad input -----------------------------------------------------------------------------------


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
    for optimizer in (
        legacy.MomentumOptimizer(rate, 0.9),
        legacy.MomentumOptimizer(0.1, momentum),
    ):
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Adam", "GGT", "averages"])
def test_data_types_that_no_step_works_on(name, kind):
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
        (lambda o, x, g: o.apply_gradients([(g, 3.0)]), TypeError, "3.0"),
        (lambda o, x, g: o.apply_gradients([("g", x)]), TypeError, "'g'"),
        (lambda o, x, g: o.apply_gradients([(tensor([1.0, 2.0]), x)]), ValueError, "shape"),
        (lambda o, x, g: o.apply_gradients([(g, x)], global_step=3), TypeError, "`global_step`"),
        (lambda o, x, g: o.minimize(x * x, aggregation_method=7), ValueError, "aggregation"),
        (lambda o, x, g: o.get_slot("x", "m"), TypeError, "`var`"),
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
        assert v1.global_variables() == [x] or len(v1.global_variables()) == 1


@pytest.mark.parametrize("name", ["", None])
def test_names_that_are_empty(name):
    for cls in (legacy.AdamOptimizer, legacy.LARSOptimizer, legacy.ShampooOptimizer):
        with pytest.raises(ValueError, match="name"):
            cls(learning_rate=0.1, name=name)


@pytest.mark.slow
def test_tensorflow_that_behaves_as_its_version_1():
    """Shapes are of other objects then, tensors are equal to themselves only, and more."""
    chosen = (
        "steps_are and (Shampoo or GGT or LARS or RMSProp) or shape or state or averages or "
        "resource and (clipping or branch or function or rest)"
    )
    files = [f"tests/test_graph_{name}.py" for name in ("rules", "wrappers", "context")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.tf1_behavior", *files, "-k", chosen],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(done.stdout.splitlines()[-1].split()[0]) > 40, done.stdout[-400:]
