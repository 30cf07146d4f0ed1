"""Shampoo: promises that not every optimizer makes, such as intervals and functions of the step."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.rules import matrix_roots, preconditioning
from tests.helpers.compare import assert_close, follow
from tests.helpers.small_model import gradients
from tests.helpers.stepping import BACKEND, Rows, Runner, every_mode
from tests.reference.shampoo import Shampoo as Reference

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread("torch")

KERNEL = {"layer/kernel": np.random.default_rng(0).normal(size=(4, 3)).astype("float32")}


def plan(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [{"layer/kernel": rng.normal(size=(4, 3)).astype("float32")} for _ in range(steps)]


def test_no_root_is_taken_between_intervals(monkeypatch):
    taken = []
    monkeypatch.setattr(
        preconditioning,
        "inverse_root",
        lambda *args: taken.append(1) or matrix_roots.inverse_root(*args),
    )
    runner = Runner(keras_tfopt.Shampoo(0.1, svd_interval=3), KERNEL, "eager")
    counts = []
    for grads in plan(7):
        runner.step(grads)
        counts.append(len(taken))
    assert counts == [0, 0, 2, 2, 2, 4, 4]


@pytest.mark.backends("tensorflow", "jax", reason="PyTorch runs the condition in Python")
def test_compiled_steps_branch_around_the_root():
    """The decomposition is in one branch of a conditional, not before a choice of results."""
    optimizer = keras_tfopt.Shampoo(0.1, svd_interval=3)
    variable = keras.Variable(KERNEL["layer/kernel"])
    optimizer.build([variable])
    gradient = keras.ops.convert_to_tensor(plan(1)[0]["layer/kernel"])
    if BACKEND == "jax":
        import jax

        program = jax.make_jaxpr(optimizer.stateless_apply)(
            [v.value for v in optimizer.variables], [gradient], [variable.value]
        )
        outside = {equation.primitive.name for equation in program.eqns}
        assert "cond" in outside and "eigh" not in outside
        assert "eigh" in str(program)
        return
    import tensorflow as tf

    step = tf.function(lambda g: optimizer.apply([g], [variable]), autograph=False)
    graph = step.get_concrete_function(gradient).graph
    kinds = {node.type for node in graph.get_operations()}
    assert kinds & {"If", "StatelessIf"} and "SelfAdjointEigV2" not in kinds


@every_mode
def test_functions_of_the_step(mode):
    """Functions get 1 at the first step. The loop sets the same numbers in the reference."""
    ops = keras.ops
    optimizer = keras_tfopt.Shampoo(
        0.1,
        gbar_decay=lambda step: step / (step + 1),
        gbar_weight=lambda step: 1 / (step + 1),
        svd_interval=lambda step: ops.where(step < 3, 1.0, 2.0),
        epsilon=0.1,
    )
    runner = Runner(optimizer, KERNEL, mode)
    reference = Reference(0.1, gbar_decay=0.5, gbar_weight=0.5, svd_interval=2, epsilon=0.1)
    x = {path: value.astype("float64") for path, value in KERNEL.items()}
    s = reference.start(x)
    for count, grads in enumerate(plan(6), start=1):
        runner.step(grads)
        reference.gbar = count / (count + 1), 1 / (count + 1)
        reference.svd_interval = 1 if count < 3 else 2
        x, s = reference.advance(grads, x, s, count)
        assert_close(runner.values["layer/kernel"], x["layer/kernel"], 2e-6, f"step {count}")


def test_a_variable_of_steps():
    count = keras.Variable(4, dtype="int32", trainable=False)
    optimizer = keras_tfopt.Shampoo(0.1, global_step=count, svd_interval=5, epsilon=0.1)
    runner = Runner(optimizer, KERNEL, "eager")
    (grads,) = plan(1)
    runner.step(grads)  # the fifth
    reference = Reference(0.1, svd_interval=5, epsilon=0.1)
    x, _ = reference.advance(grads, KERNEL, reference.start(KERNEL), 5)
    assert_close(runner.values["layer/kernel"], x["layer/kernel"], 1e-6, "kernel")


@every_mode
@pytest.mark.parametrize("options", [{}, {"use_iterative_root": True}])
def test_gradients_of_zero_and_of_rank_one_stay_finite(options, mode):
    runner = Runner(keras_tfopt.Shampoo(0.1, **options), KERNEL, mode)
    zeros = {"layer/kernel": np.zeros((4, 3), "float32")}
    one = {"layer/kernel": np.outer(np.arange(4), np.arange(3)).astype("float32")}
    for grads in (zeros, one, zeros, {"layer/kernel": 1e-12 * one["layer/kernel"]}):
        runner.step(grads)
    assert all(np.all(np.isfinite(array)) for array in runner.snapshot())


@pytest.mark.parametrize("make", [keras_tfopt.Shampoo, keras_tfopt.GGT], ids=["Shampoo", "GGT"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_a_gradient_whose_squares_are_not_finite_is_refused(make, value, kind):
    runner = Runner(make(0.1), KERNEL, "eager")
    runner.step(plan(1)[0])
    before = runner.snapshot()
    bad = np.ones((4, 3), "float32")
    bad[1, 2] = value
    grads = {"layer/kernel": bad if kind == "dense" else Rows(bad[:2], np.array([0, 3], "int32"))}
    with pytest.raises(ValueError, match="overflow, in the gradient of 'layer/kernel'"):
        runner.step(grads)
    for old, new in zip(before, runner.snapshot()):
        np.testing.assert_array_equal(old, new)
    runner.step(plan(2)[1])
    assert all(np.all(np.isfinite(array)) for array in runner.snapshot())


def test_nothing_decays_before_the_optimizer_inside_refuses():
    inner = keras_tfopt.Shampoo(0.1)
    runner = Runner(keras_tfopt.DecoupledWeightDecay(inner, 0.1), KERNEL, "eager")
    bad = {"layer/kernel": np.full((4, 3), np.nan, "float32")}
    with pytest.raises(ValueError, match="NaN, infinity"):
        runner.step(bad)
    np.testing.assert_array_equal(runner.values["layer/kernel"], KERNEL["layer/kernel"])
    skipping = Runner(keras_tfopt.SkipNonFinite(keras_tfopt.Shampoo(0.1)), KERNEL, "eager")
    skipping.step(bad)
    assert skipping.optimizer.skipped == 1


def test_large_gradients_are_accepted():
    """Their squares are finite."""
    runner = Runner(keras_tfopt.GGT(0.1), KERNEL, "eager")
    runner.step({"layer/kernel": np.full((4, 3), 1e18, "float32") * np.array([1, -1, 0])})
    assert all(np.all(np.isfinite(array)) for array in runner.snapshot())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": 0.3, "use_iterative_root": True}, "2 / alpha an integer"),
        ({"svd_interval": 1.5}, "svd_interval"),
        ({"precond_update_interval": lambda a, b: 1}, "precond_update_interval"),
        ({"use_iterative_root": True, "alpha": lambda: 0.5}, "alpha"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        keras_tfopt.Shampoo(0.1, **arguments).build([keras.Variable(np.ones((2, 2)))])


def test_slots_that_nothing_reads_do_not_exist():
    variable = keras.Variable(np.ones((3, 2)))
    for arguments, names in (
        ({}, {"Gbar_0", "Gbar_1"}),
        ({"mat_gbar_decay": 0.0}, set()),
        ({"mat_gbar_decay": 0.0, "precond_update_interval": 2}, {"Gbar_0", "Gbar_1"}),
        ({"gbar_decay": 0.1, "max_matrix_size": 2}, {"gbar", "Gbar_0", "Gbar_1"}),
        ({"svd_interval": 2, "max_matrix_size": 2}, {"Gbar_0", "Gbar_1", "H_1"}),
    ):
        optimizer = keras_tfopt.Shampoo(0.1, **arguments)
        optimizer.build([variable])
        assert set(optimizer.slot_names) == names


@every_mode
def test_a_square_table(mode):
    """Its two diagonals have the same length, and only that of the rows is cut."""
    start = {"embeddings": np.random.default_rng(2).normal(size=(5, 5)).astype("float32")}
    rng = np.random.default_rng(3)
    steps = [
        {"embeddings": Rows(rng.normal(size=(2, 5)).astype("float32"), np.array(i, "int32"))}
        for i in ([1, 3], [0, 3], [1, 1])
    ]
    arguments = {"learning_rate": 0.1, "max_matrix_size": 4}
    runner = Runner(keras_tfopt.Shampoo(**arguments), start, mode)
    follow(runner, Reference(**arguments), steps, 2e-6)


def test_registered_functions_are_saved():
    config = keras_tfopt.Shampoo(0.1, svd_interval=_interval).get_config()
    assert keras_tfopt.Shampoo.from_config(config).svd_interval is _interval
    with pytest.raises(ValueError, match="svd_interval.*register"):
        keras_tfopt.Shampoo(0.1, svd_interval=lambda step: 2.0).get_config()


@keras.saving.register_keras_serializable(package="test_shampoo")
def _interval(step):
    return 2.0 + 0.0 * step


def test_state_loaded_before_build():
    """It is checked by names that have the number of a dimension."""
    store, runner = {}, Runner(keras_tfopt.Shampoo(0.1, svd_interval=2), KERNEL, "eager")
    for grads in plan(2):
        runner.step(grads)
    runner.optimizer.save_own_variables(store)
    other = keras_tfopt.Shampoo(0.1, svd_interval=2)
    other.load_own_variables(store)
    other.build(runner.variables)
    for name in ("Gbar_0", "Gbar_1", "H_0", "H_1"):
        a, b = (o.slot(runner.variables[0], name).numpy() for o in (runner.optimizer, other))
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="does not fit"):
        keras_tfopt.Shampoo(0.1).load_own_variables(store)


def test_tables_of_the_contract_take_row_gradients():
    table = np.shape(gradients()[0]["table/embeddings"].values)
    assert table[0] >= 1 and keras_tfopt.Shampoo(max_matrix_size=5).takes_rows(
        keras_tfopt.engine.Like((7, 3), "float32", "table/embeddings")
    )
