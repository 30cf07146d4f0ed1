"""Trainings that are killed, and gradients with NaN, infinity or only zeros."""

import functools
import shutil
import signal

import numpy as np
import pytest

import keras_tfopt
from tests.cases import CASES, every_case
from tests.cells import exhaustive
from tests.helpers.compare import assert_same, follow
from tests.helpers.options import CASE
from tests.helpers.programs import run
from tests.helpers.small_model import initial
from tests.helpers.stepping import Rows, Runner, to_numpy
from tests.workers import killed_worker
from tests.workers.state_worker import MAKERS

# Killed trainings

KILLED = "lazy"  # has the main options together


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize("point", [exhaustive("mid_epoch"), "while_saving"])
def test_a_killed_training_continues_to_the_bit(point, tmp_path):
    """It continues from the last complete backup. An incomplete one is never read."""
    _, expected = killed_worker.run(tmp_path / "whole", MAKERS[KILLED])
    killed = run("-m", "tests.workers.killed_worker", tmp_path, KILLED, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not (tmp_path / "end.npz").exists()
    again = run("-m", "tests.workers.killed_worker", tmp_path, KILLED)
    assert again.returncode == 0, again.stderr[-3000:]
    with np.load(tmp_path / "end.npz") as arrays:
        first, *got = (arrays[key] for key in arrays)
    # The last complete backup is from the end of the epoch before.
    assert int(first) == killed_worker.KILLED_IN
    assert_same(got, expected)


class Killed(Exception):
    """An exception that ends a training in this process."""


def usually(*names):
    """Parametrize over all Cases, those with other names only in exhaustive runs."""
    params = [
        pytest.param(case, id=case.name, marks=[pytest.mark.exhaustive] * (case.name not in names))
        for case in CASES
    ]
    return pytest.mark.parametrize("case", params)


@pytest.mark.spread
@usually("LazyAdam", "MovingAverage")
def test_the_files_of_a_killed_training_are_enough_to_continue(case, tmp_path):
    """A copy of the files at the moment of the kill stands for a kill."""

    def end():
        shutil.copytree(running, left)
        raise Killed

    _, expected = killed_worker.run(tmp_path / "whole", case.make)
    for point in killed_worker.POINTS:
        running, left = (tmp_path / point / name for name in ("running", "left"))
        with pytest.raises(Killed):
            killed_worker.run(running, case.make, point, end)
        first, got = killed_worker.run(left, case.make)
        assert first == killed_worker.KILLED_IN
        assert_same(got, expected)


# Gradients

# Shapes of small_model.py, of which other tests in the process have compiled code.
SOUND = {
    "sound/kernel": np.random.default_rng(0).normal(size=(4, 3)),
    "hit/kernel": np.random.default_rng(1).normal(size=(4, 3)),
    "table/embeddings": np.random.default_rng(2).normal(size=(7, 3)),
}


def steps_with(case, entry):
    """Make three steps. In the third, an entry of a kernel and one of row 2 may be replaced."""
    runner = Runner(case.make(), SOUND)
    for step in range(3):
        rng = np.random.default_rng(step)
        grads = {path: rng.normal(size=SOUND[path].shape) for path in list(SOUND)[:2]}
        rows = Rows(rng.normal(size=(5, 3)), np.array([0, 2, 3, 4, 6], "int32"))
        if step == 2 and entry is not None:
            grads["hit/kernel"][0, 1] = entry
            rows.values[1, 0] = entry
        runner.step({**grads, "table/embeddings": rows})
    return runner


@functools.cache
def after_sound_steps(name):
    """Return values and slots of a Case after steps in which no entry is replaced."""
    runner = steps_with(CASE[name], None)
    return runner.values, runner.slots


def skips(case):
    return case.cls is keras_tfopt.SkipNonFinite


def needs_finite(case):
    return (case.inner or case.cls).needs_finite


@pytest.mark.formula
@every_case("case")
@pytest.mark.parametrize("entry", (np.nan, np.inf, exhaustive(-np.inf)))
def test_nan_and_infinity_reach_no_other_variable(case, entry):
    """With rules of rows, they reach no other row. They stay visible where they are.

    A rule with bounded steps hides infinity, of which it takes the sign. Rules that look at all
    variables at once spread it, or refuse it: see test_shampoo.py.
    """
    if needs_finite(case):
        with pytest.raises(ValueError, match="overflow, in the gradient of 'hit/kernel'"):
            steps_with(case, entry)
        return
    hit = steps_with(case, entry)
    if skips(case):
        assert int(to_numpy(hit.optimizer.iterations)) == 2
        assert all(np.all(np.isfinite(array)) for array in hit.snapshot())
        return
    if case.scope == "model":
        assert not np.isfinite(hit.values["hit/kernel"][0, 1])
        return
    values, slots = after_sound_steps(case.name)
    assert np.array_equal(hit.values["sound/kernel"], values["sound/kernel"])
    for name, slot in hit.slots["sound/kernel"].items():
        assert np.array_equal(slot, slots["sound/kernel"][name]), name
    hidden = case.steps_are_bounded and np.isinf(entry)
    assert np.isfinite(hit.values["hit/kernel"][0, 1]) == hidden
    assert np.isfinite(hit.values["table/embeddings"][2, 0]) == hidden
    if (
        case.sparse == "rows"
        and case.scope == "element"
        and not case.changes_variables_after_the_step
    ):
        others = [0, 1, 3, 4, 5, 6]  # rows 1 and 5 have no gradient
        table, expected = hit.values["table/embeddings"], values["table/embeddings"]
        assert np.array_equal(table[others], expected[others])


@pytest.mark.spread("torch")
@every_case("case")
def test_gradients_of_zero_from_the_first_step_on(case):
    """A rule must not divide by a state of zeros."""
    start = initial(paths=("layer/kernel", "layer/bias", "fresh/kernel", "table/embeddings"))
    zeros = {path: np.zeros_like(value) for path, value in start.items()}
    # Rows 1 and 3 to 6 have no gradient.
    table = zeros["table/embeddings"]
    zeros["table/embeddings"] = Rows(table[:3], np.array([0, 2, 0], "int32"))
    runner = Runner(case.make(), start)
    follow(runner, case.make_reference(), [zeros] * 3, case.tolerance("float32"))
    assert all(np.all(np.isfinite(array)) for array in runner.snapshot())
