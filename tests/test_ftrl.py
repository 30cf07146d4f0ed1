"""Ftrl makes no step at a learning rate of zero. The original divides by it."""

import numpy as np
import pytest

import keras_tfopt
from tests.helpers.small_model import gradients, initial
from tests.helpers.stepping import Runner, every_mode

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread


@every_mode
def test_a_learning_rate_of_zero_changes_no_variable_and_no_slot(mode):
    runner = Runner(keras_tfopt.Ftrl(0.1, l1_regularization_strength=0.1), initial(), mode)
    first, second, third, *_ = gradients(steps=("normal",) * 3)
    runner.step(first)
    runner.optimizer.learning_rate = 0.0
    before, slots = runner.values, runner.slots
    runner.step(second)
    for path, value in runner.values.items():
        assert np.array_equal(value, before[path])
        for name, slot in runner.slots[path].items():
            assert np.array_equal(slot, slots[path][name])
    runner.optimizer.learning_rate = 0.1
    runner.step(third)
    assert all(np.all(np.isfinite(array)) for array in runner.snapshot())
    assert not np.array_equal(runner.values["layer/kernel"], before["layer/kernel"])
