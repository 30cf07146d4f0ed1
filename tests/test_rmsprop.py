"""RMSProp without epsilon makes no step where gradients are zero. The original makes NaN."""

import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import Runner, every_mode

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread


@every_mode
def test_gradients_of_zero_make_no_step_without_epsilon(mode):
    optimizer = keras_tfopt.RMSProp(0.5, rho=0.0, epsilon=0.0)
    runner = Runner(optimizer, {"x": np.array([1.0, 2.0, 3.0])}, mode)
    runner.step({"x": np.array([4.0, 0.0, -0.1])})
    np.testing.assert_allclose(runner.values["x"], [0.5, 2.0, 3.5], rtol=1e-6)
