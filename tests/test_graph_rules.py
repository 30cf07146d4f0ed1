"""Rules in graphs and sessions of TensorFlow 1, on reference and resource variables.

Other files compare more: test_graph_recordings.py and test_legacy_compositions.py compare numbers
in float32 and float64, test_graph_checkpoints.py compares names of variables.
"""

import inspect

import numpy as np
import pytest

from keras_tfopt import legacy
from keras_tfopt.legacy.table import REQUIRED, TABLE
from tests import cells
from tests.cases import RULES
from tests.helpers.graphs import (
    KINDS,
    assert_close,
    counter,
    eagerly,
    every_kind,
    one_kind_of_each,
    rows,
    session,
    start,
    tensor,
    tf,
    v1,
    variable,
)

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

# {class of the original that is a rule: our Case}
NAMES = {
    name: next(case for case in RULES if case.name == row.ours)
    for name, row in TABLE.items()
    if any(case.name == row.ours for case in RULES)
}
# These need singular values or eigenvalues, which TensorFlow does not compute in half precision.
NO_HALF = ("GGTOptimizer", "ShampooOptimizer")

INITIAL = {
    "bias": np.array([1.0, -2.0, 0.5]),
    "kernel": np.linspace(-1, 2, 12).reshape(3, 4),
    "table": np.linspace(2, -1, 14).reshape(7, 2),
}
GRADIENTS = {
    "bias": np.array([0.1, -0.3, 0.01]),
    "kernel": np.cos(np.arange(12.0)).reshape(3, 4) * 0.2,
    "table": np.array([[0.1, 0.2], [-0.3, 0.1], [0.05, 0.4]]),
}
INDICES = np.array([5, 0, 5])


def arguments_of(name, case, count=None, **changes):
    """Return the arguments of a Case's main variant by their names in the original."""
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


@one_kind_of_each({name: KINDS for name in NAMES if name not in NO_HALF})
def test_half_precision_matches_the_reference(name, kind):
    """Two operations share the state. Gradients are dense and of rows."""
    case = NAMES[name]
    reference, x = case.make_reference(), {p: v.astype("float16") for p, v in INITIAL.items()}
    s = reference.start(x)
    with session() as sess:
        count = counter(kind)
        optimizer = getattr(legacy, name)(**arguments_of(name, case, count))
        ours = {path: variable(x[path], path, kind, "float16") for path in x}

        def train(scale):
            given = {path: tensor(scale * g, "float16") for path, g in GRADIENTS.items()}
            given["table"] = rows(scale * GRADIENTS["table"], INDICES, (7, 2), "float16")
            return optimizer.apply_gradients([(g, ours[path]) for path, g in given.items()], count)

        operations = {scale: train(scale) for scale in (1.0, -2.0)}
        assert all(isinstance(operation, tf.Operation) for operation in operations.values())
        start(sess)
        for step, scale in enumerate((1.0, 1.0, -2.0, 1.0), 1):
            sess.run(operations[scale])
            g = {path: (scale * g).astype("float16") for path, g in GRADIENTS.items()}
            x, s = reference.advance({**g, "table": (g["table"], INDICES)}, x, s, step)
            for path, value in sess.run(ours).items():
                assert_close(value, x[path], "float16")
        assert sess.run(count) == 4
        for path in ours:
            for slot, value in s[path].items():
                found = optimizer.get_slot(ours[path], slot)
                if found is not None:
                    assert found.dtype.base_dtype.name == "float16"
                    assert_close(sess.run(found), value, "float16", 3)


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


def after_three_steps(sess, optimizers):
    """Return a variable of each optimizer after three steps."""
    ours, count = [variable(INITIAL["kernel"]) for _ in optimizers], counter(name="any")
    scale = v1.placeholder("float32", [])
    g = scale * tensor(GRADIENTS["kernel"])
    train = [o.apply_gradients([(g, x)], count) for o, x in zip(optimizers, ours, strict=True)]
    start(sess)
    for number in (1.0, -2.0, 3.0):
        sess.run(train, {scale: number})
    return sess.run(ours)


# Arguments besides the learning rate that may change, and their values.
CHANGING = {
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


# Each form goes through one of these. Of other classes, three forms are tried.
EVERY_FORM = [f"{name}Optimizer" for name in ("Adam", "AdamGS", "Momentum", "RMSProp", "Shampoo")]


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_in_every_form(name):
    """A number, tensor, variable, placeholder or function gives the same step."""
    chosen = {"tensor", "variable", cells.pick(list(FORMS), name)}
    if cells.EXHAUSTIVE or name in EVERY_FORM:
        chosen = FORMS
    with session() as sess:
        given = arguments_of(name, NAMES[name], counter())
        numbers = {"learning_rate": given["learning_rate"], **CHANGING.get(name, {})}
        others = {key: 0.5 * number for key, number in numbers.items()}
        forms = [{key: FORMS[form](n) for key, n in numbers.items()} for form in chosen]
        cls = getattr(legacy, name)
        optimizers = [cls(**{**given, **changed}) for changed in (numbers, others, *forms)]
        plain, changed, *found = after_three_steps(sess, optimizers)
        assert np.abs(changed - plain).max() > 1e-6, "the arguments make a difference"
        for form, value in zip(chosen, found, strict=True):
            np.testing.assert_allclose(value, plain, rtol=1e-6, err_msg=form)


@every_kind
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


# ---- State ---------------------------------------------------------------------------------------


@every_kind
def test_state_has_the_names_of_the_original(kind):
    with session():
        x = variable([1.0, 2.0], "w", kind)
        loss = tf.reduce_sum(x**2)
        train = legacy.AdamOptimizer().minimize(loss)
        legacy.NadamOptimizer().minimize(loss)
        legacy.LARSOptimizer(0.1).minimize(loss)
        legacy.FtrlOptimizer(0.1, accum_name="sums", name="F").minimize(loss)
        legacy.ShampooOptimizer().minimize(loss)
        ggt = legacy.GGTOptimizer(window=2)
        ggt.minimize(loss)
        state = ggt._get_moment1(), ggt._get_grad_buffer(), ggt._get_flat_grad()
        names = [
            *["w:0", "w/Adam:0", "w/Adam_1:0", "beta1_power:0", "beta2_power:0"],
            *["w/Adam_2:0", "w/Adam_3:0", "beta1_power_1:0", "beta2_power_1:0"],
            *["w/LARSOptimizer:0", "w/sums:0", "w/F:0", "w/Shampoo:0", "w/Shampoo_1:0"],
            *[one.name for one in state],
            "global_step:0",  # which GGT counts
        ]
        assert names[-4:-1] == ["moment1:0", "grad_buffer:0", "flat_grad:0"]
        assert {state.name for state in v1.global_variables()} == set(names)
        assert [state.name for state in v1.trainable_variables()] == ["w:0"]
        assert v1.local_variables() == []
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP)[0] is train
        assert train.name == "Adam"


@every_kind
@pytest.mark.parametrize("name", ["AdamOptimizer", "NadamOptimizer", "LazyAdamOptimizer"])
def test_powers_advance_in_every_operation_of_an_optimizer(name, kind):
    """Two operations of one optimizer share its powers."""
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
    """AdaMax has one power. Powers of the GS classes follow the global step."""
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
def test_powers_of_the_gs_classes_in_eager_code(name):
    with eagerly():
        count, x = tf.Variable(0, dtype="int64"), tf.Variable([1.0])
        optimizer = getattr(legacy, name)(count, beta1=0.5)
        assert float(optimizer._get_beta_accumulators()[0]) == 0.5
        for t in (1, 2, 3):
            optimizer.apply_gradients([(tensor([1.0]), x)], global_step=count)
            assert float(optimizer._get_beta_accumulators()[0]) == 0.5**t


def test_an_optimizer_has_state_of_its_own_in_each_graph():
    """Eager code has state of its own, too."""
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


def test_two_sessions_have_state_of_their_own():
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


def test_slots_exist_before_they_are_initialized():
    """Building a step creates slots for the variables with a gradient."""
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


USUAL = [f"{name}Optimizer" for name in "Adam LazyAdam LARS GGT Shampoo Ftrl AdagradDA".split()]


@pytest.mark.parametrize(
    "name", [name if name in USUAL else cells.exhaustive(name) for name in NAMES]
)
def test_variables_without_elements(name):
    """Other variables move as usual."""
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
