"""Steps of TensorFlow 1 in control flow and functions, and on partitioned variables."""

import keras
import numpy as np
import pytest

from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.graphs import (
    MAKE,
    assert_close,
    choose_control_flow,
    counter,
    eagerly,
    every_kind,
    rows,
    session,
    start,
    straight,
    tensor,
    tf,
    v1,
    variable,
)
from tests.helpers.programs import output_of

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

# ---- Control flow --------------------------------------------------------------------------------


# Control flow of version 2 cannot assign to reference variables.
FLOWS = [("resource", "later"), ("resource", "of version 1"), ("reference", "of version 1")]
# {name: numbers of the flows that are not for exhaustive runs only}
TRIED = {
    **{"Adam": (0, 1, 2), "GGT": (0, 2)},
    **{"LARS": (0,), "averages": (1,), "multitask": (2,), "decay": (1,)},
}


@pytest.mark.parametrize(
    ("name", "kind", "flow"),
    [
        (name, *flow) if number in TRIED[name] else exhaustive(name, *flow)
        for name in MAKE
        for number, flow in enumerate(FLOWS)
    ],
)
def test_steps_in_a_branch(name, kind, flow, monkeypatch):
    """A step inside `cond` is made only if its branch is taken."""
    choose_control_flow(monkeypatch, flow)
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


@pytest.mark.parametrize(
    ("name", "flow"),
    [
        ("Adam", "later"),
        ("Adam", "of version 1"),
        ("LARS", "later"),
        ("decay", "of version 1"),
        exhaustive("LARS", "of version 1"),
        exhaustive("decay", "later"),
    ],
)
def test_steps_in_a_loop(name, flow, monkeypatch):
    """Steps inside `while_loop` equal steps one after the other."""
    choose_control_flow(monkeypatch, flow)
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
    """Steps inside `tf.function` equal steps outside, with XLA or without."""
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
def test_reg_adagrad_leaves_slots_alone_in_functions(inside):
    """The context is around the call of a compiled function, or inside the function."""
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


@pytest.mark.parametrize(
    ("make", "compiler"),
    [
        (lambda: legacy.GradientDescentOptimizer(0.1), False),  # counts no steps
        (lambda: legacy.MomentumOptimizer(0.1, 0.9), True),
        (lambda: legacy.AdamOptimizer(0.1), True),
    ],
)
def test_steps_of_a_function_and_of_the_keras_optimizer_take_turns(make, compiler):
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
        function()()  # this function is traced after the step of Keras
        assert int(optimizer.keras.iterations) == 4
        value = x.numpy()
        made.apply([2 * x], [x])
        step()  # this one was traced before it
        with pytest.raises(RuntimeError, match="so that neither has the whole state"):
            optimizer.variables()
    assert_close(value, straight(make, 4))


@every_kind
def test_order_of_operations(kind):
    """A step reads its gradient first. It has ended when its operation has."""
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


TWICE = {
    "AdagradDA": lambda count: legacy.AdagradDAOptimizer(
        0.1, count, l1_regularization_strength=0.01
    ),
    "AdamGS": lambda count: legacy.AdamGSOptimizer(count, 0.1),
    "GGT": lambda count: legacy.GGTOptimizer(0.01, window=4),
    "Nadam": lambda count: legacy.NadamOptimizer(0.1),
    "Shampoo": lambda count: legacy.ShampooOptimizer(count, epsilon=0.1, learning_rate=0.1),
}


@every_kind
@pytest.mark.parametrize("name", TWICE)
def test_two_steps_in_one_run_are_those_of_two_runs(name, kind):
    """The second step reads what the first one wrote, although nothing but order joins them."""

    def trained(in_one_run):
        with session() as sess:
            x = variable(np.linspace(-1, 1, 6).reshape(2, 3), "x", kind)
            count, g = counter(kind), v1.placeholder("float32", [2, 3])
            optimizer = TWICE[name](count)
            first = optimizer.apply_gradients([(g, x)], count)
            with tf.control_dependencies([first] if in_one_run else []):
                second = optimizer.apply_gradients([(g * g, x)], count)
            start(sess)
            random = np.random.default_rng(0)
            for _ in range(5):
                given = {g: random.normal(size=(2, 3))}
                for operation in [second] if in_one_run else [first, second]:
                    sess.run(operation, given)
            return sess.run(x)

    assert_close(trained(True), trained(False))


# ---- Arguments of the verbs ----------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("gate", ["GATE_NONE", "GATE_OP", "GATE_GRAPH"])
def test_gates(gate, kind):
    """Every value of `gate_gradients` gives the same gradients and the same step."""
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


@every_kind
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


@every_kind
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_counts_of_steps(dtype, kind):
    """A `global_step` of any dtype and kind grows by one in each step."""
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


@every_kind
@pytest.mark.parametrize("name", ["AdamOptimizer", "AdagradOptimizer"])
def test_partitioned_variables(name, kind):
    """Partitioned variables move as with the optimizers of TensorFlow."""

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


@every_kind
@pytest.mark.parametrize("name", ["Adam", "decay", "multitask"])
def test_constraints(name, kind):
    """A constraint of a variable holds after a step."""
    with session() as sess:
        x = variable(
            [0.5, -0.5], "x", kind, constraint=lambda value: tf.clip_by_value(value, -0.1, 0.2)
        )
        train = MAKE[name]().apply_gradients([(tensor([1.0, -1.0]), x)])
        start(sess)
        sess.run(train)
        assert_close(sess.run(x), [0.2, -0.1])


@pytest.mark.slow
def test_tensorflow_in_the_mode_of_version_1():
    """Some tests run again with `disable_v2_behavior`, which changes shapes and equality."""
    chosen = ["half and LARS", "half and RMSProp", "shape", "state", "averages", "in_a_function"]
    parts = ("branch", "Shampoo", "GGT", "Multitask", "Clipping")
    chosen += [f"resource and {part}" for part in parts]
    names = ("rules", "gradients", "wrappers", "context", "recordings")
    files = [f"tests/test_graph_{name}.py" for name in names]
    plugin = ["-v", "-p", "tests.helpers.tf1_behavior"]
    printed = output_of("-m", "pytest", *plugin, *files, "-k", " or ".join(chosen), hidden=())
    passed = [line for line in printed.splitlines() if " PASSED" in line]
    for words in chosen:
        assert any(all(word in line for word in words.split(" and ")) for line in passed), words
