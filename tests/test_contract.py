"""Promises of every optimizer, tried with every Case.

All modes share the rule and the engine. So a promise is tested in the modes in which it could
break. The match with the reference is tested in all modes.
"""

import inspect
import itertools

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import (
    CASES,
    every_case,
    main_variant_in_all_modes,
    of_each_kind,
    training_of,
)
from tests.cells import exhaustive
from tests.helpers import stepping
from tests.helpers.compare import follow
from tests.helpers.small_model import FEW, gradients, initial
from tests.helpers.stepping import (
    BACKEND,
    MODES,
    Rows,
    Runner,
    eager_and_compiled,
    every_mode,
    to_numpy,
)

# Numbers


def is_slow(case, variant, mode):
    """Return whether steps take seconds to compile: of each operation, or of each variant."""
    if BACKEND == "jax":
        return mode == "eager" and case.scope == "variable" and not (case.inner or case.cls).flat
    return BACKEND == "torch" and mode == "compiled" and variant != case.main


@pytest.mark.formula
@main_variant_in_all_modes(others=("eager", "compiled"), is_rare=is_slow)
def test_matches_its_reference_in_float32(case, variant, mode):
    runner = Runner(case.make(variant), initial("float32"), mode, "float32")
    tolerance = case.tolerance("float32", variant, mode)
    follow(runner, case.make_reference(variant), gradients("float32"), tolerance)


@pytest.mark.spread("torch")
@every_case("case", "variant")
def test_matches_its_reference_in_float64(case, variant):
    match_in_float64(case, variant, "eager")


@pytest.mark.spread
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
@of_each_kind(CASES)
def test_matches_its_reference_in_float64_in_other_modes(case, mode):
    match_in_float64(case, case.main, mode)


def match_in_float64(case, variant, mode):
    """Compare steps with the reference: in float64, wrong formulas differ from roundings."""
    runner = Runner(case.make(variant), initial("float64"), mode, "float64")
    tolerance = case.tolerance("float64", variant, mode)
    follow(runner, case.make_reference(variant), gradients("float64"), tolerance)


@every_case("case")
@eager_and_compiled
def test_a_schedule_is_read_at_every_step(case, mode):
    def halving(count):
        return 0.1 * 0.5**count

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

    reference = case.make_reference()
    reference.learning_rate = halving
    runner = Runner(case.make(learning_rate=Halving()), initial(paths=FEW), mode)
    follow(runner, reference, gradients(steps=("normal",) * 3, paths=FEW), case.tolerance())


@every_case("case")
def test_an_assigned_learning_rate_counts_from_the_next_step(case):
    reference = case.make_reference()
    reference.learning_rate = lambda count: (0.125, 0.125, 0.5)[count]
    runner = Runner(case.make(learning_rate=0.125), initial(paths=FEW), "compiled")
    step, plan = runner.step, gradients(steps=("normal",) * 3, paths=FEW)
    calls = itertools.count(1)

    def assign_before_the_third(grads):
        if next(calls) == 3:
            runner.optimizer.learning_rate = 0.5
        step(grads)

    runner.step = assign_before_the_third
    follow(runner, reference, plan, case.tolerance())


# Programs


@every_case("case")
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("eager", "fast")])
def test_steps_after_the_second_build_no_program(case, mode):
    runner = Runner(case.make(), initial(paths=FEW), mode)
    before = runner.traces()
    first, second, *rest = gradients(paths=FEW)
    runner.step(first)
    runner.step(second)
    built = runner.traces()
    for grads in rest:
        runner.step(grads)
    assert runner.traces() == built
    if BACKEND != "torch":
        assert (before, built) == (0, 1)
    elif case.scope == "element":
        assert built >= 1  # the count is of the process, in which equal optimizers share programs


# Kinds of variables


@every_case("case")
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        *((dtype, "eager") for dtype in ("float16", "bfloat16", "float32", "float64")),
        ("bfloat16", "compiled"),
        *(exhaustive(dtype, "compiled") for dtype in ("float16", "float32", "float64")),
    ],
)
def test_dtype_and_shape_are_kept(case, dtype, mode):
    ranks = ("scale", "layer/kernel", "conv/kernel", "table/embeddings", "frozen")
    runner = Runner(case.make(), initial("float32", ranks), mode, dtype)
    variables = (*runner.variables, *runner.optimizer.variables)
    kinds = [(v.path, v.dtype, tuple(v.shape)) for v in variables]
    start = runner.snapshot()
    for grads in gradients(steps=("normal", "normal"), paths=ranks):
        runner.step(grads)
    assert [(v.path, v.dtype, tuple(v.shape)) for v in variables] == kinds
    for v in variables:
        assert keras.backend.standardize_dtype(v.value.dtype) == v.dtype
        assert tuple(v.value.shape) == tuple(v.shape)
        assert np.all(np.isfinite(to_numpy(v))), v.path
    owners = [None] if case.scope == "model" else runner.variables
    for owner in owners:
        for slot in stepping.slots_of(runner.optimizer, owner).values():
            # half precision cannot hold moments: it rounds 0.999 to 1
            assert slot.dtype == ("float32" if dtype in ("float16", "bfloat16") else dtype)
    assert all(v.dtype == dtype for v in runner.variables)
    moved = [not np.array_equal(a, b) for a, b in zip(start, runner.snapshot())]
    assert any(moved[: len(runner.variables)])


@every_case("case")
@eager_and_compiled
def test_a_variable_without_gradient_and_its_slots_do_not_change(case, mode):
    both = {"a/kernel": np.ones((2, 3)), "b/kernel": np.full((3,), 2.0)}
    runner = Runner(case.make(), both, mode)
    runner.step({path: np.ones_like(value) for path, value in both.items()})
    values, slots = runner.values, runner.slots
    runner.step({"b/kernel": np.ones(3)})
    assert np.array_equal(runner.values["a/kernel"], values["a/kernel"])
    for name, slot in slots.get("a/kernel", {}).items():  # with scope "model" it has no slots
        assert name in case.slots_that_workers_share or np.array_equal(
            runner.slots["a/kernel"][name], slot
        ), name
    assert np.all(runner.values["b/kernel"] != values["b/kernel"])
    assert int(to_numpy(runner.optimizer.iterations)) == 2


@every_case("case")
@every_mode
def test_empty_and_scalar_variables(case, mode):
    shapes = {"none": (0,), "rows/kernel": (0, 3), "columns/kernel": (3, 0), "scalar": ()}
    values = {path: np.ones(shape) for path, shape in shapes.items()}
    values["none/embeddings"] = np.ones((0, 2))
    values["one"] = np.ones((1,))
    grads = {path: 0.5 * value for path, value in values.items()}
    grads["none/embeddings"] = Rows(np.ones((0, 2)), np.zeros(0, "int32"))
    runner = Runner(case.make(), values, mode)
    follow(runner, case.make_reference(), [grads] * 2, case.tolerance())
    assert runner.values["scalar"] != 1.0


# Minima


def trained(case, function, start, gradient):
    """Return the variable after the steps that a Case says are enough for a function."""
    training = training_of(case, function)
    runner = Runner(case.build(**training.arguments), {"x": np.array(start)}, "compiled")
    runner.minimize(gradient, training.steps)
    return runner.values["x"]


@pytest.mark.spread("jax")  # where the whole training is one program
@every_case("case")
def test_converges_on_a_quadratic(case):
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    matrix = basis @ np.diag([0.3, 0.6, 1.0, 3.0]) @ basis.T  # of condition 10
    matrix = keras.ops.convert_to_tensor(matrix.astype("float32"))
    target = np.array([1.0, -2.0, 0.5, 1.5], "float32")

    def gradient(x):
        return keras.ops.sum(matrix * (x - keras.ops.convert_to_tensor(target)), axis=1)

    x = trained(case, "quadratic", [3.0, 1.0, -1.0, 0.1], gradient)
    assert np.max(np.abs(x - target)) < 1e-2


@pytest.mark.spread("jax")
@every_case("case")
def test_converges_on_rosenbrock(case):
    def gradient(x):
        a, b = x[0], x[1]
        return keras.ops.stack([-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)])

    x = trained(case, "rosenbrock", [-1.2, 1.0], gradient)
    assert np.max(np.abs(x - 1.0)) < 0.05


@pytest.mark.spread
def test_every_public_optimizer_has_a_case():
    public = [getattr(keras_tfopt, name) for name in keras_tfopt.__all__]
    optimizers = {
        item
        for item in public
        if inspect.isclass(item) and issubclass(item, keras.optimizers.Optimizer)
    }
    # Base classes, and a wrapper that only passes gradients on: see test_loss_scaling.py.
    others = {item for item in optimizers if item.__module__.count(".") == 1}
    assert others == {keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.LossScaleOptimizer}
    assert optimizers - others == {case.cls for case in CASES}
    assert len({case.reference for case in CASES}) == len(CASES)
