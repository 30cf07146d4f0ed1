"""Steps of RegAdagrad that leave its accumulators alone."""

import contextlib

import numpy as np
import pytest

from tests.helpers import options
from tests.helpers.options import Expected, follow, gradients, initial
from tests.helpers.stepping import Runner, every_mode, to_numpy

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread

CASE = options.CASE["RegAdagrad"]


@every_mode
def test_slots_rest_within_the_context(mode):
    runner, expected = Runner(CASE.make(), initial(), mode), Expected(CASE, initial())
    avoid = runner.optimizer.avoid_updating_slots
    for avoiding, grads in zip((False, True, True, False, True), gradients(5), strict=True):
        expected.reference.avoiding = avoiding
        with avoid() if avoiding else contextlib.nullcontext():
            follow(runner, expected, [grads], 8 * CASE.tolerance())
    assert int(runner.optimizer.iterations) == 5


@every_mode
def test_nested_contexts_and_exceptions(mode):
    runner, expected = Runner(CASE.make(), initial(), mode), Expected(CASE, initial())
    avoid, grads = runner.optimizer.avoid_updating_slots, gradients(4)

    def step(index, avoiding):
        expected.reference.avoiding = avoiding
        follow(runner, expected, [grads[index]], 8 * CASE.tolerance())

    with avoid():
        with avoid():
            step(0, True)
        step(1, True)
        with pytest.raises(ZeroDivisionError), avoid():
            raise ZeroDivisionError
        step(2, True)
    with pytest.raises(ZeroDivisionError), avoid():
        raise ZeroDivisionError
    step(3, False)


@pytest.mark.parametrize("build_first", (True, False))
def test_state_saved_within_the_context_goes_on_as_the_context_says(build_first):
    runner = Runner(CASE.make(), initial())
    runner.step(gradients(1)[0])
    store = {}
    with runner.optimizer.avoid_updating_slots():
        runner.optimizer.save_own_variables(store)
    other = CASE.make()
    if build_first:
        other.build(runner.variables)
    other.load_own_variables(store)
    other.build(runner.variables)
    assert float(to_numpy(other.avoiding)) == 0.0
    for variable in runner.variables:
        ours, theirs = (o.slot(variable, "accumulator") for o in (other, runner.optimizer))
        assert np.array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.parametrize("build_first", (True, False))
def test_state_of_an_optimizer_that_has_not_begun(build_first):
    store = {}
    CASE.make(learning_rate=0.25).save_own_variables(store)
    other, runner = CASE.make(), Runner(CASE.make(), initial())
    if build_first:
        other.build(runner.variables)
    other.load_own_variables(store)
    other.build(runner.variables)
    assert float(to_numpy(other.learning_rate)) == 0.25
