"""Nested optimizers, steps in branches, and extreme hyperparameters, against TensorFlow 1.15."""

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.tf1.compositions import KINDS, RULES, SCENARIOS, run
from keras_tfopt import legacy
from tests.cells import EXHAUSTIVE, exhaustive
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import BACKEND, to_numpy

RECORDED = np.load(GOLDEN / "tf1_graphs" / "compositions.npz")
ON_TENSORFLOW = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

# {extreme scenario: words in `names()` if our numbers differ from the original}
EDGES = {"no epsilon": "epsilon of 0", "not a number": "was NaN", "overflow": "overflows"}
# In float32, singular values of nearly singular matrices are not exact.
TOLERANCES = {"GGT": 3e-4, "Shampoo": 3e-4, "shampoo": 3e-4}


def one_kind(name):
    """Return one kind of variables, always the same one for the same name."""
    return KINDS[len(name) % 2]


def kinds_of(name):
    return KINDS if EXHAUSTIVE else [one_kind(name)]


def edge_of(name):
    return name.split(",")[0] if name.split(",")[0] in EDGES else None


def is_ignored(name):
    """Return whether the original ignores an argument of this program."""
    return name.startswith("decay of some by minimize")


def assert_recorded(name, kind, found):
    tolerance = next((t for part, t in TOLERANCES.items() if part in name), 2e-5)
    for variable, values in found.items():
        expected = RECORDED[f"{name}/{kind}/{variable}"]
        np.testing.assert_allclose(
            values, expected, rtol=tolerance, atol=tolerance, err_msg=variable, strict=True
        )


# ---- In graphs -----------------------------------------------------------------------------------


@pytest.fixture
def in_graphs(monkeypatch):
    """Return a function that makes the steps of a scenario in a graph, as in TensorFlow 1."""
    import tensorflow as tf

    from tests.helpers.graphs import choose_control_flow  # on TensorFlow only

    choose_control_flow(monkeypatch, "of version 1")

    def found(name, kind, train=legacy):
        steps = run(tf.compat.v1, train, legacy, SCENARIOS[name], kind)
        return {key: np.stack([one[key] for one in steps]) for key in SCENARIOS[name].start}

    return found


# Around rules whose steps have the form of others.
RARE = (
    "Adadelta Adagrad AdaMax GradientDescent Nadam PowerSign ProximalAdagrad "
    "ProximalGradientDescent"
).split()


def usually(names, rare=RARE):
    """Parametrize over scenarios; those of a rule in `rare` are for exhaustive runs."""
    left = {f"{within}, {rule}" for within in ("multitask", "branch") for rule in rare}
    params = [exhaustive(name) if name in left else name for name in names]
    return pytest.mark.parametrize("name", params)


@ON_TENSORFLOW
@usually([n for n in SCENARIOS if not edge_of(n) and not is_ignored(n)])
def test_in_graphs(name, in_graphs):
    """Every composition gives the recorded numbers of TensorFlow 1.15.5."""
    for kind in kinds_of(name):
        assert_recorded(name, kind, in_graphs(name, kind))


@ON_TENSORFLOW
@pytest.mark.parametrize("name", [name for name in SCENARIOS if edge_of(name)])
def test_extreme_numbers_differ_only_if_names_say_so(name, in_graphs):
    edge, rule = name.split(", ")
    said = EDGES[edge] in legacy.names()[f"{rule}Optimizer"].differs
    for kind in kinds_of(name):
        if not said:
            assert_recorded(name, kind, in_graphs(name, kind))
            continue
        found, theirs = in_graphs(name, kind)["a"], RECORDED[f"{name}/{kind}/a"]
        assert not np.array_equal(found[:, 0], theirs[:, 0], equal_nan=True)
        np.testing.assert_allclose(found[:, 1], theirs[:, 1], rtol=2e-5)


@ON_TENSORFLOW
@pytest.mark.parametrize("name", [name for name in SCENARIOS if is_ignored(name)])
def test_minimize_takes_the_variables_to_decay(name, in_graphs):
    """In the original, `minimize` ignores the choice and decays all variables."""
    asked = name.replace("by minimize, ", "").replace("decay of some ", "decay of some, ")
    for kind in kinds_of(name):
        found = in_graphs(name, kind)
        assert_recorded(asked, kind, found)
        np.testing.assert_allclose(RECORDED[f"{name}/{kind}/a"], found["a"], rtol=1e-5)
        assert np.all(RECORDED[f"{name}/{kind}/b"] != found["b"])
    cls = {"AdamW": "AdamWOptimizer", "MomentumW": "MomentumWOptimizer"}.get(
        name.split(", ")[1], "extend_with_decoupled_weight_decay"
    )
    assert "`decay_var_list` of `minimize` acts" in legacy.names()[cls].differs


OF_TENSORFLOW = RULES[:10]  # which `tf.train` has; others are ours there, too
STOCK = [
    name
    for name in SCENARIOS
    if name in ("clipping, plain", "clipping, minimized")
    or name.split(", ")[0] in ("multitask", "decay", "decay of some")
    and name.split(", ")[1].removeprefix("extended ") in OF_TENSORFLOW
]


@ON_TENSORFLOW
@usually(STOCK, ["ProximalAdagrad", "ProximalGradientDescent"])
def test_around_optimizers_of_tensorflow(name, in_graphs):
    """`tf.train` means `tf.compat.v1.train` here."""
    import tensorflow as tf

    kind = one_kind(name)
    assert_recorded(name, kind, in_graphs(name, kind, tf.compat.v1.train))


# ---- Eagerly -------------------------------------------------------------------------------------

SHARED = pytest.mark.backends("tensorflow", "torch", reason="JAX and PyTorch share the code")
EAGER = [
    name
    for name, scenario in SCENARIOS.items()
    if scenario.within == "plain"
    and not edge_of(name)
    and not name.startswith("clipping")  # where variables are keys of a dictionary
    and not (name.startswith("multitask") and name.split(", ")[1] in set(RULES) - {"Adam", "Ftrl"})
]


def as_given(gradient, variable):
    is_rows = isinstance(gradient, tuple)
    return keras_tfopt.RowGradient(*gradient, variable.shape) if is_rows else gradient


def run_eagerly(scenario):
    step = keras.Variable(0, dtype="int64", trainable=False, name="global_step")
    variables = {name: keras.Variable(value, name=name) for name, value in scenario.start.items()}
    optimizer = scenario.make(legacy, legacy, step, variables)
    more = {}
    if scenario.decayed is not None:
        more["decay_var_list"] = [variables[name] for name in scenario.decayed]
    after = {name: [] for name in variables}
    for gradients in scenario.steps:
        pairs = [(as_given(g, variables[name]), variables[name]) for name, g in gradients.items()]
        optimizer.apply_gradients(pairs, global_step=step, **more)
        for name, variable in variables.items():
            after[name].append(to_numpy(variable))
    return {name: np.stack(values) for name, values in after.items()}


@SHARED
@pytest.mark.spread
@pytest.mark.parametrize("name", [name for name in EAGER if not is_ignored(name)])
def test_eagerly(name):
    """Eager compositions give the recorded numbers of graphs."""
    assert_recorded(name, "resource", run_eagerly(SCENARIOS[name]))


@SHARED
def test_a_gradient_of_zeros_for_ggt():
    """In the original, and so on TensorFlow, the previous gradient acts again."""
    scenario = SCENARIOS["multitask, GGT"]
    found = run_eagerly(scenario)
    if BACKEND == "tensorflow":
        assert_recorded("multitask, GGT", "resource", found)
        return
    a, b = found["a"], found["b"]
    assert np.all(a[1] == a[0]) and np.all(b[1] != b[0]), "`a` rests in the second step"
    assert np.all(a[2] != a[1]) and np.all(b[2] == b[1])
    assert "rests on JAX and PyTorch" in legacy.names()["MultitaskOptimizerWrapper"].differs
