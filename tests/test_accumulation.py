"""With `gradient_accumulation_steps=k`, k calls of `apply` make one step on the mean gradient."""

import numpy as np
import pytest

import keras_tfopt
from tests.helpers.options import CASE, INITIAL, SCHEDULE, Expected, follow, gradients, initial
from tests.helpers.stepping import BACKEND, Rows, Runner, every_mode


def one_of_each_sparse():
    """Return a Case for each value of `sparse`, which says how rules handle row gradients."""
    names = {"dense": "Adam", "rows": "LazyAdam", "move_rows": "Nadam"}
    assert all(CASE[name].cls.sparse == sparse for sparse, name in names.items())
    return [CASE[name] for name in names.values()]


@every_mode
@pytest.mark.parametrize("case", one_of_each_sparse(), ids=lambda case: case.name)
def test_rows_that_are_named_with_a_gradient_of_zero_are_touched_by_an_accumulated_step(case, mode):
    """This holds for a table and for another variable. The first step gives state to all rows."""
    rng = np.random.default_rng(5)
    options = {"gradient_accumulation_steps": 2}
    shapes = {path: INITIAL[path].shape for path in ("layer/kernel", "table/embeddings")}
    start = {path: INITIAL[path].astype("float32") for path in shapes}

    def rows(indices, scale):
        return {
            p: Rows(scale * rng.normal(size=(len(indices), *s[1:])), np.array(indices, "int32"))
            for p, s in shapes.items()
        }

    everywhere = [{p: rng.normal(size=s) for p, s in shapes.items()} for _ in range(2)]
    plan = [*everywhere, rows([1, 0, 1], 0.0), rows([2, 0], 1.0), rows([3], 0.0), rows([3], 0.0)]
    follow(
        Runner(case.make(**options), start, mode),
        Expected(case, start, **options),
        plan,
        case.tolerance("float32"),
    )


def test_accumulation_reads_schedules_at_the_number_of_micro_steps():
    """A schedule counts calls of `apply`, as stock Keras documents."""
    k, case = 2, CASE["Momentum"]
    mode = "compiled" if BACKEND == "jax" else "eager"  # the others take long to compile
    runner = Runner(keras_tfopt.Momentum(SCHEDULE, gradient_accumulation_steps=k), initial(), mode)
    expected = Expected(
        case,
        initial(),
        learning_rate=lambda count: 0.1 / (1 + (k * (count + 1) - 1) / 2),
        gradient_accumulation_steps=k,
    )
    follow(runner, expected, gradients(6), 4e-6)
