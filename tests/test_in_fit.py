"""Every optimizer in what Keras does with a model: compiling, fitting, changing it.

A cell is an optimizer and a check. With `--exhaustive`, all cells run. Without it, each check takes
two of the `REPRESENTATIVES`, in turn. test_composition.py tests wrappers with other optimizers
inside.
"""

import contextlib

import keras
import numpy as np
import pytest

from tests.cases import CASES, REPRESENTATIVES
from tests.cells import EXHAUSTIVE
from tests.helpers.compare import same
from tests.helpers.fitting import (
    EPOCHS,
    FIT,
    IDS,
    START,
    TARGETS,
    baseline,
    batches,
    close,
    equals_baseline,
    fit,
    fitted,
    jit_compile,
    make_model,
    run_eagerly,
    state,
    steps_per_execution,
)
from tests.helpers.stepping import BACKEND, Runner, policy, to_numpy

# How a step is run


def not_jit_compiled(case):
    equals_baseline(case, fitted(case.make(), {"jit_compile": False}))


def the_same_seed(case):
    """Two trainings with one seed, shuffled data and dropout are equal to the bit."""

    def trained(seed):
        keras.utils.set_random_seed(seed)
        layers = keras.layers
        model = keras.Sequential(
            [layers.Embedding(8, 3), layers.Flatten(), layers.Dropout(0.5), layers.Dense(2)]
        )
        model.compile(case.make(), "mse")
        return state(fit(model, shuffle=True))

    first, second, other = trained(0), trained(0), trained(1)
    assert same(first, second)
    assert not same(first, other)


# Models and optimizers


def clone_model(case):
    model = fitted(case.make())
    clone = keras.models.clone_model(model)
    clone.compile(type(model.optimizer).from_config(model.optimizer.get_config()), "mse")
    before = state(model)
    clone.set_weights(START)
    equals_baseline(case, fit(clone))
    assert same(before, state(model))


def compiled_again(case):
    """Training goes on with the same optimizer, and starts anew with a new one."""
    model = make_model(case.make())
    fit(model, 1)
    model.compile(model.optimizer, "mse")
    fit(model, 1)
    equals_baseline(case, model)
    assert int(to_numpy(model.optimizer.iterations)) == EPOCHS * len([*batches()])
    model.compile(case.make(), "mse")
    model.set_weights(START)
    equals_baseline(case, fit(model))


def two_models_in_turns(case):
    """Two optimizers with different learning rates do not disturb each other."""
    others = {"learning_rate": 0.011}
    models = [make_model(case.make()), make_model(case.make(**others))]
    for _ in range(EPOCHS):
        for batch in batches():
            for model in models:
                model.train_on_batch(*batch)
    equals_baseline(case, models[0])
    close(models[1].get_weights(), fitted(case.make(**others)).get_weights())
    assert not same(models[0].get_weights(), models[1].get_weights())


def two_optimizers_in_one_model(case):
    """Each moves some of the variables, as if there were no others."""
    shapes = {"first/kernel": (3, 2), "second/kernel": (2,)}
    rng = np.random.default_rng(0)
    values = {path: rng.normal(size=shape) for path, shape in shapes.items()}
    plan = [{p: rng.normal(size=shape) for p, shape in shapes.items()} for _ in range(3)]

    def runners():
        arguments = ({}, {"learning_rate": 0.011})
        for (path, value), changes in zip(values.items(), arguments):
            yield path, Runner(case.make(**changes), {path: value}, "compiled")

    alone = {}
    for path, runner in runners():
        for grads in plan:
            runner.step({path: grads[path]})
        alone[path] = runner.snapshot()
    together = dict(runners())
    for grads in plan:
        for path, runner in together.items():
            runner.step({path: grads[path]})
    for path, runner in together.items():
        assert same(runner.snapshot(), alone[path])


# Variables that are frozen, added or unused


def frozen(case):
    """A frozen variable and its state do not change. Later they continue from there."""
    model = make_model(case.make())
    optimizer, dense = model.optimizer, model.get_layer("dense")
    fit(model, 1)
    start = state(model)
    dense.trainable = False
    model.compile(optimizer, "mse")
    meets_workers = "meet" in getattr(optimizer, "defines", ())
    if BACKEND == "jax" and (case.scope == "model" or meets_workers):
        # Keras passes on no values of frozen variables.
        with pytest.raises(ValueError, match="needs values of all 3 .* 1 of them"):
            fit(model, 1)
        return
    fit(model, 1)
    dense.trainable = True
    after = state(model)
    rests = [same([a], [b]) for a, b in zip(start[:3], after[:3])]
    assert rests == [False, True, True]
    if case.scope != "model":
        for variable in dense.variables:
            for name in set(optimizer.slot_names) - set(case.slots_that_change_in_all_rows):
                with contextlib.suppress(KeyError):
                    slot = optimizer.slot(variable, name)
                    place = next(i for i, v in enumerate(optimizer.variables) if v is slot)
                    assert same([start[3 + place]], [after[3 + place]]), name
    model.compile(optimizer, "mse")
    fit(model, 1)
    assert all(not same([a], [b]) for a, b in zip(after[:3], state(model)[:3]))
    assert int(to_numpy(optimizer.iterations)) == 3 * len([*batches()])


def frozen_for_a_new_optimizer(case):
    """A new optimizer is built without the frozen layer."""
    model = make_model(case.make())
    model.get_layer("dense").trainable = False
    model.compile(case.make(), "mse")
    fit(model)
    assert [same([a], [b]) for a, b in zip(model.get_weights(), START)] == [False, True, True]
    assert not {"dense/kernel", "dense/bias"} & {v.path for v in model.trainable_variables}
    model.get_layer("dense").trainable = True
    model.compile(case.make(), "mse")
    model.set_weights(START)
    equals_baseline(case, fit(model))


def added(case):
    """An optimizer names the variables for which it was not built, and refuses them."""
    model = make_model(case.make())
    fit(model, 1)
    optimizer = model.optimizer
    new = keras.Variable(np.ones(2), name="newcomer")
    before = state(model)
    known = model.trainable_variables[0]
    for variables in ([new], [known, new]):
        grads = [keras.ops.ones(v.shape) for v in variables]
        with pytest.raises(ValueError, match="(?s)newcomer.*create a new optimizer"):
            optimizer.apply(grads, variables)
    assert same(before, state(model)) and np.all(to_numpy(new) == 1)

    larger = keras.Sequential([*model.layers, keras.layers.Dense(2, name="more")])
    larger.build((None, 2))
    larger.compile(optimizer, "mse")
    expected = "values of 5.*new optimizer" if BACKEND == "jax" else "more/kernel.*create a new"
    with pytest.raises(ValueError, match=f"(?s){expected}"):
        fit(larger, 1)


def unused(case):
    """A layer that does not influence the loss does not influence other layers."""
    inputs = keras.Input((2,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(8, 3, name="table")(inputs))
    outputs = {name: keras.layers.Dense(2, name=name)(x) for name in ("used", "unused")}
    model = keras.Model(inputs, outputs)
    used = [model.get_layer("table"), model.get_layer("used")]
    used[0].set_weights(START[:1])
    used[1].set_weights(START[1:])
    model.compile(case.make(), {"used": "mse"})
    model.fit(IDS, {"used": TARGETS}, epochs=EPOCHS, **FIT)
    close([*used[0].get_weights(), *used[1].get_weights()], baseline(case))


# Constraints, policies


def constraints(case):
    """Constraints hold after training; those that never act change nothing."""

    def constrained(constraint):
        model = make_model(case.make())
        dense = model.get_layer("dense")
        dense.kernel.constraint = constraint
        return fit(model)

    kernel = constrained(keras.constraints.NonNeg()).get_layer("dense").get_weights()[0]
    assert np.min(START[1]) < 0
    # A wrapper may move variables back, after the constraint was applied.
    assert case.changes_variables_after_the_step or np.min(kernel) >= 0
    assert np.max(kernel) > 0
    equals_baseline(case, constrained(keras.constraints.MaxNorm(1e6)))


def policies(case):
    """Variables keep their dtype, state has at least float32, and steps are those of float32."""
    for name in ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64"):
        with policy(name):
            optimizer = case.make()
            if "float16" in name.split("_"):  # the default scale is too large for a few steps
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
            model = fit(make_model(optimizer))
        dtype = name if "mixed" not in name else "float32"
        assert {v.dtype for v in model.trainable_variables} == {dtype}
        kept = {v.dtype for v in model.optimizer.variables} - {"int32", "int64", "bool"}
        # The learning rate is of Keras's float type, unless variables are float64.
        assert kept <= {"float64", "float32"}, name
        # Rounding changes the sign of some gradients. Numbers of variables that have moved far are
        # rounded by more.
        largest = 1e-5 if name == "float64" else 0.05
        ends = zip(model.trainable_variables, baseline(case), START, strict=True)
        for v, expected, start in ends:
            far = max(1, np.mean(np.abs(expected - start)))
            assert np.all(np.isfinite(to_numpy(v)))
            assert np.mean(np.abs(to_numpy(v) - expected)) < largest * far, (name, v.path)
        assert not same([to_numpy(v) for v in model.trainable_variables], START)


CHECKS = (
    run_eagerly,
    jit_compile,
    not_jit_compiled,
    steps_per_execution,
    the_same_seed,
    clone_model,
    compiled_again,
    two_models_in_turns,
    two_optimizers_in_one_model,
    frozen,
    frozen_for_a_new_optimizer,
    added,
    unused,
    constraints,
    policies,
)


# Only exhaustive runs make these: PyTorch takes minutes to compile a whole training step, and JAX
# makes the same steps in `run_eagerly`.
RARE = {"torch": jit_compile, "jax": not_jit_compiled}


def marks_of(check):
    if check is steps_per_execution:
        reason = "Keras has no steps_per_execution on PyTorch"
        return [pytest.mark.backends("tensorflow", "jax", reason=reason)]
    return [pytest.mark.exhaustive] * (RARE.get(BACKEND) is check)


def cells():
    """Return all cells, or two optimizers for each check, in turn."""
    kinds = [case for case in CASES if case.name in REPRESENTATIVES]
    for number, check in enumerate(CHECKS):
        some = [kinds[(2 * number + i) % len(kinds)] for i in range(2)]
        for case in CASES if EXHAUSTIVE else some:
            name = f"{check.__name__}-{case.name}"
            yield pytest.param(case, check, id=name, marks=marks_of(check))


@pytest.mark.parametrize(("case", "check"), cells())
def test_in_fit(case, check):
    check(case)


def test_each_kind_meets_some_checks():
    met = [cell.values[0].name for cell in cells() if not cell.marks]
    assert set(met) >= REPRESENTATIVES
    assert min(met.count(name) for name in REPRESENTATIVES) >= 2
    assert {cell.values[1] for cell in cells()} == set(CHECKS)
