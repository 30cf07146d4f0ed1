"""Rules in graphs and sessions, on reference and resource variables, as TensorFlow 1 runs them."""

import inspect

import numpy as np
import pytest

from keras_tfopt import legacy
from keras_tfopt.legacy.table import REQUIRED, TABLE
from tests import cells
from tests.cases import RULES
from tests.stepping import BACKEND

if BACKEND != "tensorflow":
    pytest.skip("graphs of TensorFlow 1 are TensorFlow's", allow_module_level=True)

import tensorflow as tf

from tests.graphs import (
    DTYPES,
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

# Every class that is a rule by itself, with its Case.
NAMES = {
    name: next(case for case in RULES if case.name == row.ours)
    for name, row in TABLE.items()
    if any(case.name == row.ours for case in RULES)
}
# Singular values and eigenvalues are not had in half precision, neither in the originals.
NO_HALF = ("GGTOptimizer", "ShampooOptimizer")

INITIAL = {
    "bias": np.array([1.0, -2.0, 0.5]),
    "kernel": np.linspace(-1, 2, 12).reshape(3, 4),
    "table": np.linspace(2, -1, 14).reshape(7, 2),
}
GRADIENTS = {
    "bias": np.array([0.1, -0.3, 0.01]),
    "kernel": np.cos(np.arange(12.0)).reshape(3, 4) * 0.2,
    "table": (np.array([[0.1, 0.2], [-0.3, 0.1], [0.05, 0.4]]), np.array([5, 0, 5])),
}


def arguments_of(name, case, count=None, **changes):
    """The arguments of a Case's first variant, by their names in the original."""
    theirs = {ours: original for original, ours in TABLE[name].renamed.items()}
    defaults = inspect.signature(case.cls).parameters
    required = [key for key, default in TABLE[name].arguments.items() if default is REQUIRED]
    found = {key: defaults[key].default for key in required}
    found |= {theirs.get(key, key): value for key, value in case.variants[case.main].items()}
    if "sign_decay_fn" in found:
        decay = found["sign_decay_fn"]
        found["sign_decay_fn"] = lambda step: tf.constant(decay)
    if "global_step" in TABLE[name].arguments:
        found["global_step"] = count
    return {**found, **changes}


def gradients(dtype, sign=1.0):
    values, indices = GRADIENTS["table"]
    dense = {path: tensor(sign * GRADIENTS[path], dtype) for path in ("bias", "kernel")}
    return {**dense, "table": rows(sign * values, indices, (7, 2), dtype)}


def reference_gradients(dtype, sign=1.0):
    values, indices = GRADIENTS["table"]
    dense = {path: (sign * GRADIENTS[path]).astype(dtype) for path in ("bias", "kernel")}
    return {**dense, "table": ((sign * values).astype(dtype), indices)}


def names_and_kinds():
    """One kind of variables for each rule; in exhaustive runs, both."""
    for name in NAMES:
        for kind in KINDS:
            marks = [] if kind == cells.pick(KINDS, name) else [pytest.mark.exhaustive]
            yield pytest.param(name, kind, marks=marks)


@pytest.mark.parametrize(("name", "kind"), names_and_kinds())
def test_steps_are_those_of_the_reference(name, kind):
    case = NAMES[name]
    for dtype in DTYPES:
        if dtype == "float16" and name in NO_HALF:
            continue
        reference = case.make_reference()
        x = {path: value.astype(dtype) for path, value in INITIAL.items()}
        s = reference.start(x)
        with session() as sess:
            count = counter(kind)
            optimizer = getattr(legacy, name)(**arguments_of(name, case, count))
            ours = {path: variable(x[path], path, kind, dtype) for path in x}
            train = [
                optimizer.apply_gradients(
                    [(g, ours[path]) for path, g in gradients(dtype, sign).items()], count
                )
                for sign in (1.0, -2.0)
            ]
            assert all(isinstance(op, tf.Operation) for op in train)
            start(sess)
            for step, which in enumerate((0, 0, 1, 0), 1):
                sess.run(train[which])
                x, s = reference.advance(reference_gradients(dtype, (1, -2)[which]), x, s, step)
                for path, value in sess.run(ours).items():
                    factor = 3 if name in NO_HALF else 1
                    assert_close(value, x[path], dtype, factor)
            assert sess.run(count) == 4
            for path, slots in s.items():
                for slot, value in slots.items():
                    if path is not None and optimizer.get_slot(ours[path], slot) is not None:
                        found = optimizer.get_slot(ours[path], slot)
                        assert found.dtype.base_dtype.name == dtype
                        assert_close(sess.run(found), value, dtype, 3)


# ---- The optimizers that TensorFlow still has ----------------------------------------------------

STOCK = {
    "AdadeltaOptimizer": {"learning_rate": 1.0, "rho": 1.0, "epsilon": 1.0},
    "AdagradDAOptimizer": {"learning_rate": 3.0, "l1_regularization_strength": 0.01},
    "AdagradOptimizer": {"learning_rate": 3.0, "use_locking": True},
    "AdamOptimizer": {"learning_rate": 0.1, "epsilon": 1e-4},
    "FtrlOptimizer": {"learning_rate": 3.0, "l2_shrinkage_regularization_strength": 0.1},
    "GradientDescentOptimizer": {"learning_rate": 3.0, "use_locking": True},
    "MomentumOptimizer": {"learning_rate": 2.0, "momentum": 0.9, "use_nesterov": True},
    "ProximalAdagradOptimizer": {"learning_rate": 3.0, "l2_regularization_strength": 2.0},
    "ProximalGradientDescentOptimizer": {"learning_rate": 3.0, "l1_regularization_strength": 1e-3},
    "RMSPropOptimizer": {"learning_rate": 2.0, "decay": 0.5, "epsilon": 1e-3},
}


def train_two_layers(module, name, kind):
    """What there is after some steps: the values of all variables of the graph, by name."""
    with session() as sess:
        count = counter(kind)
        with v1.variable_scope("net"):
            ours = {path: variable(INITIAL[path], path, kind) for path in sorted(INITIAL)}
            arguments = dict(STOCK[name])
            if name == "AdagradDAOptimizer":
                arguments["global_step"] = count
            optimizer = getattr(module, name)(**arguments)
            pairs = [(g, ours[path]) for path, g in gradients("float32").items()]
            train = optimizer.apply_gradients(zip(*zip(*pairs, strict=True), strict=True), count)
            getattr(module, name)(**arguments).apply_gradients(pairs)  # has state of its own
        start(sess)
        for _ in range(3):
            sess.run(train)
        named = {
            slot: optimizer.get_slot(ours["kernel"], slot) for slot in optimizer.get_slot_names()
        }
        own = [state.name for state in optimizer.variables()]
        trainable = [state.name for state in v1.trainable_variables()]
        values = {state.name: sess.run(state) for state in v1.global_variables()}
        return values, {slot: state.name for slot, state in named.items()}, own, trainable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STOCK)
def test_numbers_and_names_are_those_of_stock_optimizers(name, kind):
    values, slots, own, trainable = train_two_layers(legacy, name, kind)
    expected, *names = train_two_layers(v1.train, name, kind)
    assert [slots, own, trainable] == names
    assert set(values) == set(expected)
    for path, value in expected.items():
        assert_close(values[path], value)


# ---- Hyperparameters -----------------------------------------------------------------------------

FORMS = {
    "tensor": lambda number: tf.constant(number),
    "tensor of float64": lambda number: tf.constant(number, "float64"),
    "function": lambda number: lambda: number,
    "function of a tensor": lambda number: lambda: tf.constant(number),
    "variable": lambda number: variable(number, trainable=False),
    "reference variable": lambda number: variable(number, kind="reference", trainable=False),
    "placeholder": lambda number: v1.placeholder_with_default(np.float32(number), []),
}


def after_three(sess, optimizers):
    """What each makes of a variable of its own."""
    ours, count = [variable(INITIAL["kernel"]) for _ in optimizers], counter(name="any")
    scale = v1.placeholder("float32", [])
    g = scale * tensor(GRADIENTS["kernel"])
    train = [o.apply_gradients([(g, x)], count) for o, x in zip(optimizers, ours, strict=True)]
    start(sess)
    for number in (1.0, -2.0, 3.0):
        sess.run(train, {scale: number})
    return sess.run(ours)


@pytest.mark.parametrize("name", NAMES)
def test_learning_rate_in_every_form(name):
    with session() as sess:
        count = counter()
        given = arguments_of(name, NAMES[name], count)
        rate = given["learning_rate"]
        rates = [rate, *(form(rate) for form in FORMS.values())]
        cls = getattr(legacy, name)
        plain, *others = after_three(sess, [cls(**{**given, "learning_rate": r}) for r in rates])
        for form, value in zip(FORMS, others, strict=True):
            np.testing.assert_allclose(value, plain, rtol=1e-6, err_msg=form)


OTHER = {
    "AdamOptimizer": {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    "AdaMaxOptimizer": {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    "NadamOptimizer": {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    "LazyAdamOptimizer": {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    "AddSignOptimizer": {"alpha": 2.0, "beta": 0.5},
    "PowerSignOptimizer": {"base": 2.0, "beta": 0.5},
    "RMSPropOptimizer": {"learning_rate": 0.1, "decay": 0.7, "momentum": 0.6, "epsilon": 1e-3},
    "AdadeltaOptimizer": {"rho": 0.7, "epsilon": 1e-3},
    "MomentumOptimizer": {"learning_rate": 0.1, "momentum": 0.7},
}


@pytest.mark.parametrize("name", OTHER)
def test_other_hyperparameters_in_every_form(name):
    with session() as sess:
        cls, numbers = getattr(legacy, name), OTHER[name]
        forms = [{key: form(n) for key, n in numbers.items()} for form in FORMS.values()]
        plain, *others = after_three(sess, [cls(**given) for given in (numbers, *forms)])
        default = after_three(sess, [cls(**{**numbers, next(iter(numbers)): 0.5})])
        for form, value in zip(FORMS, others, strict=True):
            np.testing.assert_allclose(value, plain, rtol=1e-6, err_msg=form)
        assert np.abs(default[0] - plain).max() > 1e-6, "it makes a difference"


@pytest.mark.parametrize("kind", KINDS)
def test_placeholders_and_variables_change_between_steps(kind):
    with session() as sess:
        rate = v1.placeholder("float32", [])
        momentum = variable(0.5, kind=kind, trainable=False)
        x = variable([1.0, 2.0], kind=kind)
        train = legacy.MomentumOptimizer(rate, momentum).minimize(tf.reduce_sum(3 * x))
        start(sess)
        sess.run(train, {rate: 1.0})
        assert sess.run(x).tolist() == [-2.0, -1.0]
        momentum.load(2.0, sess)
        sess.run(train, {rate: 0.5})  # the momentum is 3, then 9
        assert sess.run(x).tolist() == [-6.5, -5.5]
        with pytest.raises(tf.errors.InvalidArgumentError, match="feed a value"):
            sess.run(train)


def test_schedules_of_tensorflow_1():
    with session() as sess:
        count = counter()
        rate = v1.train.piecewise_constant(count, [0, 1], [1.0, 10.0, 100.0])
        x = variable(0.0)
        train = legacy.GradientDescentOptimizer(rate).minimize(-x, count)
        start(sess)
        for expected in (1.0, 11.0, 111.0):
            sess.run(train)
            assert sess.run(x) == expected


# ---- State ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_under_the_original_names(kind):
    with session():
        x = variable([1.0, 2.0], "w", kind)
        loss = tf.reduce_sum(x**2)
        train = legacy.AdamOptimizer().minimize(loss)
        legacy.NadamOptimizer().minimize(loss)
        legacy.LARSOptimizer(0.1).minimize(loss)
        legacy.FtrlOptimizer(0.1, accum_name="sums", name="F").minimize(loss)
        legacy.ShampooOptimizer().minimize(loss)
        names = [
            *["w:0", "w/Adam:0", "w/Adam_1:0", "beta1_power:0", "beta2_power:0"],
            *["w/Adam_2:0", "w/Adam_3:0", "beta1_power_1:0", "beta2_power_1:0"],
            *["w/LARSOptimizer:0", "w/sums:0", "w/F:0", "w/Shampoo:0", "w/Shampoo_1:0"],
        ]
        assert {state.name for state in v1.global_variables()} == set(names)
        assert [state.name for state in v1.trainable_variables()] == ["w:0"]
        assert v1.local_variables() == []
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP)[0] is train
        assert train.name == "Adam"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["AdamOptimizer", "NadamOptimizer", "LazyAdamOptimizer"])
def test_powers_advance_in_every_operation_of_an_optimizer(name, kind):
    with session() as sess:
        optimizer = getattr(legacy, name)(beta1=0.5, beta2=0.25)
        x, y = variable([1.0], kind=kind), variable([1.0], kind=kind, dtype="float16")
        one = optimizer.apply_gradients([(tensor([1.0]), x)])
        two = optimizer.apply_gradients([(tensor([1.0]), x), (tensor([1.0], "float16"), y)])
        powers = optimizer._get_beta_accumulators()
        assert all(any(power is state for state in optimizer.variables()) for power in powers)
        start(sess)
        for t, train in enumerate((one, two, two, one), 1):
            assert sess.run(powers) == (0.5**t, 0.25**t)
            sess.run(train)


def test_powers_of_adamax_and_of_the_gs_classes():
    with session() as sess:
        x, count = variable([1.0]), counter()
        ada_max = legacy.AdaMaxOptimizer(beta1=0.5)
        train = [ada_max.apply_gradients([(tensor([1.0]), x)])]
        power = ada_max._get_beta_accumulators()
        assert power.name == "beta1_power:0" and len(ada_max.variables()) == 3
        gs = legacy.AdamGSOptimizer(count, beta1=lambda: 0.5, beta2=0.25)
        train.append(gs.apply_gradients([(tensor([1.0]), x)], global_step=count))
        powers = gs._get_beta_accumulators()
        assert [state.name for state in gs.variables()] == ["Variable/Adam:0", "Variable/Adam_1:0"]
        start(sess)
        for t in (1, 2, 3):
            assert sess.run([power, *powers]) == [0.5**t, 0.5**t, 0.25**t]
            sess.run(train)


@pytest.mark.parametrize("name", ["AdamGSOptimizer", "LazyAdamGSOptimizer"])
def test_powers_of_the_gs_classes_are_eagerly_those_of_the_last_step(name):
    with eagerly():
        count, x = tf.Variable(0, dtype="int64"), tf.Variable([1.0])
        optimizer = getattr(legacy, name)(count, beta1=0.5)
        assert float(optimizer._get_beta_accumulators()[0]) == 0.5
        for t in (1, 2, 3):
            optimizer.apply_gradients([(tensor([1.0]), x)], global_step=count)
            assert float(optimizer._get_beta_accumulators()[0]) == 0.5**t


def test_state_belongs_to_a_graph():
    optimizers = [legacy.AdamOptimizer(), legacy.GGTOptimizer()]
    with pytest.warns(UserWarning, match="the constant 1 never changes"):
        optimizers.append(legacy.AdamGSOptimizer(1.0))
    for optimizer in optimizers:
        with eagerly():
            eager = tf.Variable([1.0, 2.0])
            optimizer.apply_gradients([(tensor([0.1, 0.1]), eager)])
            own = [state.name for state in optimizer.variables()]
        for name in ("var0", "var1"):
            with session() as sess:
                assert optimizer.variables() == []
                x = variable([1.0, 2.0], name, dtype="float64")
                train = optimizer.apply_gradients([(tensor([0.1, 0.1], "float64"), x)])
                start(sess)
                sess.run(train)
                state = optimizer.variables()
                assert len(state) == len(own)
                assert all(one.graph is v1.get_default_graph() for one in state)
        with eagerly():
            assert [state.name for state in optimizer.variables()] == own


def test_state_of_two_sessions_is_apart():
    with tf.Graph().as_default() as graph:
        x = variable([1.0])
        optimizer = legacy.AdamOptimizer(0.1)
        train = optimizer.minimize(tf.reduce_sum(x**2))
        with v1.Session(graph=graph) as one, v1.Session(graph=graph) as two:
            start(one), start(two)
            for _ in range(3):
                one.run(train)
            two.run(train)
            power, _ = optimizer._get_beta_accumulators()
            assert_close(one.run(power), 0.9**4)
            assert_close(two.run(power), 0.9**2)
            assert one.run(x) < two.run(x) < 1


def test_slots_are_there_before_they_are_initialized():
    with session() as sess:
        x, y = variable([[1.0, 2.0]], "x"), variable([3.0], "y")
        optimizer = legacy.RMSPropOptimizer(0.1, centered=True)
        assert optimizer.get_slot_names() == []
        assert optimizer.get_slot(x, "rms") is None
        optimizer.apply_gradients([(tensor([[1.0, 1.0]]), x), (None, y)])
        assert optimizer.get_slot_names() == ["mg", "momentum", "rms"]
        assert optimizer.get_slot(x, "rms").shape == x.shape
        assert optimizer.get_slot(var=x, name="mg").name == "x/RMSProp_1:0"
        assert optimizer.get_slot(y, "rms") is None
        assert optimizer.get_slot(x, "m") is None
        not_ready = v1.report_uninitialized_variables()
        assert len(sess.run(not_ready)) == 5
        start(sess)
        assert sess.run(optimizer.get_slot(x, "rms")).tolist() == [[1.0, 1.0]]
        start(sess)
        assert len(sess.run(not_ready)) == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_state_of_ggt(kind, dtype):
    with session() as sess:
        b, a = variable([3.0, 4.0], "b", kind, dtype), variable([1.0, 2.0], "a", kind, dtype)
        optimizer = legacy.GGTOptimizer(learning_rate=0.001, window=2)
        g = [tensor([0.01, 0.02], dtype), tensor([0.1, 0.2], dtype)]
        train = optimizer.apply_gradients(zip(g, [b, a], strict=True))
        state = optimizer._get_moment1(), optimizer._get_grad_buffer(), optimizer._get_flat_grad()
        assert all(any(one is known for known in optimizer.variables()) for one in state)
        assert all(one.dtype.base_dtype.name == dtype for one in state)
        start(sess)
        flat, moment = np.array([0.1, 0.2, 0.01, 0.02]), np.zeros(4)
        window = np.zeros((2, 4))
        for t in range(3):
            sess.run(train)
            moment = 0.9 * moment + 0.1 * flat
            window[t % 2] = moment
            for found, expected in zip(sess.run(state), (moment, window, flat), strict=True):
                assert_close(found, expected, dtype)


# ---- Gradients and variables of every kind ------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_gradients_of_gathered_rows(kind, index_dtype):
    with session() as sess:
        x, y = (variable([[1.0], [2.0], [3.0]], kind=kind) for _ in range(2))
        indices = tf.constant([[2, 0], [2, 2]], index_dtype)
        train = legacy.LazyAdamOptimizer(0.5, beta1=0.0, epsilon=0.0).minimize(
            tf.reduce_sum(tf.gather(x, indices))
        )
        wrong_shape = rows([[1.0], [3.0]], [0, 2], [2], index_dtype=index_dtype)
        same = legacy.LazyAdamOptimizer(0.5, beta1=0.0, epsilon=0.0).apply_gradients(
            [(wrong_shape, y)]
        )
        start(sess)
        for _ in range(2):
            sess.run([train, same])
        assert_close(sess.run(x), [[0.0], [2.0], [2.0]], factor=3)
        np.testing.assert_array_equal(sess.run(x), sess.run(y))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_unknown_shape(kind):
    with session() as sess:
        x, y, z = (variable([1.0, 2.0], kind=kind) for _ in range(3))
        fed = v1.placeholder("float32")
        indices = v1.placeholder("int64")
        optimizer = legacy.MomentumOptimizer(2.0, 0.9)
        pairs = [
            (tf.IndexedSlices(fed, tf.constant([0, 1])), x),
            (fed, y),
            (tf.IndexedSlices(fed, indices, tf.constant([2])), z),
        ]
        train = optimizer.apply_gradients(pairs)
        start(sess)
        sess.run(train, {fed: [0.1, 0.2], indices: [1, 1]})
        assert_close(sess.run([x, y, z]), [[0.8, 1.6], [0.8, 1.6], [1.0, 1.4]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("name", ["AdagradOptimizer", "RegAdagradOptimizer", "AdamOptimizer"])
def test_variables_of_unknown_shape(name, shape, kind):
    with session() as sess:
        cls = getattr(legacy, name)
        use_resource = kind == "resource"
        x, y = (
            v1.get_variable(
                label,
                initializer=lambda: v1.placeholder_with_default(np.ones(shape, "f"), None),
                validate_shape=False,
                use_resource=use_resource,
            )
            for label in "xy"
        )
        assert x.shape.rank is None
        z = variable(np.ones(shape), "z", kind)
        given = np.full(shape, 0.1)
        train = cls(0.3).apply_gradients([(tensor(given), x), (tensor(given), z)])
        sparse = []
        if shape:
            sparse.append(cls(0.3).apply_gradients([(rows(given[:1], [1]), y)]))
        start(sess)
        for _ in range(3):
            sess.run([train, *sparse])
        assert_close(sess.run(x), sess.run(z))
        assert not np.array_equal(sess.run(x), np.ones(shape))
        if shape and name != "AdamOptimizer":
            assert_close(sess.run(y)[1], sess.run(z)[1])
            assert sess.run(y)[0].tolist() == [1.0] * 3


@pytest.mark.parametrize("name", NAMES)
def test_variables_without_elements(name):
    with session() as sess:
        count = counter()
        x, y = variable(np.zeros((0, 3)), "x"), variable([1.0, 2.0], "y")
        optimizer = getattr(legacy, name)(**arguments_of(name, NAMES[name], count))
        pairs = [(tensor(np.zeros((0, 3))), x), (tensor([0.1, 0.2]), y)]
        train = optimizer.apply_gradients(pairs, count)
        start(sess)
        sess.run(train)
        assert sess.run(x).shape == (0, 3)
        assert np.isfinite(sess.run(y)).all() and (sess.run(y) != [1.0, 2.0]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_variables(kind):
    with session() as sess:
        x, g = variable([1.0, 2.0], kind=kind), variable([0.0, 0.0], kind=kind)
        train = legacy.LARSOptimizer(1.0, 0.0, 0.0, 1.0).apply_gradients([(g, x)])
        start(sess)
        g.load([0.3, 0.4], sess)
        sess.run(train)
        norm = np.sqrt(5.0)
        assert_close(sess.run(x), [1 - 0.6 * norm, 2 - 0.8 * norm])


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_computed_in_bfloat16(kind):
    with session() as sess:
        x = v1.Variable(tf.ones([2], "bfloat16"), use_resource=kind == "resource")
        optimizer = legacy.MomentumOptimizer(0.5, 0.9)
        train = optimizer.apply_gradients([(tf.constant([1.0, 2.0**-9], "bfloat16"), x)])
        start(sess)
        assert optimizer.get_slot(x, "momentum").dtype.base_dtype == tf.bfloat16
        sess.run([train])
        # Eight bits: half of 2**-9 is lost beside one.
        assert sess.run(tf.cast(x, "float32")).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_reg_adagrad_leaves_slots_alone_where_it_is_told(kind):
    with session() as sess:
        x = variable([[1.0], [2.0]], kind=kind)
        optimizer = legacy.RegAdagradOptimizer(1.0, initial_accumulator_value=0.25)
        with optimizer.avoid_updating_slots():
            dense = optimizer.apply_gradients([(tensor([[0.5], [0.0]]), x)])
            sparse = optimizer.apply_gradients([(rows([[0.5]], [1]), x)])
        learns = optimizer.apply_gradients([(tensor([[0.5], [0.5]]), x)])
        start(sess)
        for _ in range(2):
            sess.run(dense)
            sess.run(sparse)
        slot = optimizer.get_slot(x, "accumulator")
        assert sess.run(slot).tolist() == [[0.25], [0.25]]
        assert_close(sess.run(x), [[-1.0], [0.0]])
        sess.run(learns)
        assert sess.run(slot).tolist() == [[0.5], [0.5]]


def test_layer_rates():
    with session() as sess:
        x, b = variable([3.0, 4.0], "w"), variable([1.0], "bias")
        optimizer = legacy.LARSOptimizer(2.0, weight_decay=0.1, eeta=0.5, skip_list=["bias"])
        rate, g = optimizer.compute_lr(tensor([6.0, 8.0]), x)
        skipped = optimizer.compute_lr(tensor([6.0]), b)
        start(sess)
        assert_close(sess.run(rate), 2 * 0.5 * 5 / (10 + 0.1 * 5))
        assert_close(sess.run(g), [6.3, 8.4])
        assert sess.run(skipped) == (2.0, [6.0])


# ---- Steps that cannot be taken ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "ShampooOptimizer"])
@pytest.mark.parametrize("where", ["graph", "eager"])
def test_no_gradients(where, name):
    with tf.Graph().as_default() if where == "graph" else eagerly():
        x, y = (v1.Variable([1.0, 2.0], use_resource=True) for _ in range(2))
        optimizer = getattr(legacy, name)(learning_rate=3.0)
        nothing = "No gradients provided for any variable"
        for step in (
            lambda: optimizer.minimize(lambda: 5 * x, var_list=[y]),
            lambda: optimizer.minimize(lambda: tf.constant(5.0), var_list=[x, y]),
            lambda: optimizer.apply_gradients([(None, x), (None, y)]),
        ):
            with pytest.raises(ValueError, match=nothing):
                step()
        with pytest.raises(ValueError, match="no variables"):
            optimizer.apply_gradients([])
        assert optimizer.variables() == []


@pytest.mark.parametrize("where", ["graph", "eager"])
def test_no_variables(where):
    with tf.Graph().as_default() if where == "graph" else eagerly():
        frozen = v1.Variable([1.0], use_resource=True, trainable=False)
        with pytest.raises(ValueError, match="No.*variables"):
            legacy.GradientDescentOptimizer(3.0).minimize(lambda: 5 * frozen)


@pytest.mark.parametrize("where", ["graph", "eager"])
def test_tensors_have_gradients_and_no_steps(where):
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
