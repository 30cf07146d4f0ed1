"""LARS: its promises beyond those of every optimizer."""

import keras
import numpy as np
import pytest

import keras_tfopt

# test_contract.py checks the formula on every backend.
pytestmark = pytest.mark.spread


@pytest.mark.parametrize("gradient", [[0.3, -0.4], [0.0, 0.0]])
@pytest.mark.parametrize("value", [[3.0, 4.0], [0.0, 0.0]])
def test_compute_lr_is_the_rate_times_the_trust_ratio(gradient, value):
    optimizer = keras_tfopt.LARS(2.0, weight_decay=0.1, eeta=0.01, epsilon=1e-3)
    g_norm, x_norm = np.linalg.norm(gradient), np.linalg.norm(value)
    ratio = 1.0  # where either is zero
    if g_norm > 0 and x_norm > 0:
        ratio = 0.01 * x_norm / (g_norm + 0.1 * x_norm + 1e-3)
    variable = keras.Variable(np.array(value, "float32"))
    rate = optimizer.compute_lr(np.array(gradient, "float32"), variable)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(rate), 2.0 * ratio, rtol=1e-6)


def test_compute_lr_takes_hyperparameters_as_they_are_at_the_step():
    decay = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1.0)
    optimizer = keras_tfopt.LARS(2.0, weight_decay=decay, eeta=lambda: 0.01, epsilon=0.0)
    variable = keras.Variable(np.array([3.0, 4.0], "float32"))
    optimizer.build([variable])
    for count in range(2):
        rate = optimizer.compute_lr(np.array([0.3, -0.4], "float32"), variable)
        expected = 2.0 * 0.01 * 5.0 / (0.5 + 0.1 / (1 + count) * 5.0)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(rate), expected, rtol=1e-6)
        optimizer.iterations.assign_add(1)
