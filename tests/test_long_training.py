"""Beyond 2^24 steps, where float32 has no odd numbers, periods of steps keep their length."""

import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import Runner, every_mode, to_numpy

PERIOD, STEPS = 5, 12
MANY = 2**24 + 1001

# Optimizers, and the remainder of the steps in which a slot changes, divided by the period.
PERIODIC = {
    "Lookahead": (
        lambda: keras_tfopt.Lookahead(keras_tfopt.GradientDescent(0.1), sync_period=PERIOD),
        "slow",
        0,
    ),
    "StochasticWeightAveraging": (
        lambda: keras_tfopt.StochasticWeightAveraging(
            keras_tfopt.GradientDescent(0.1), average_period=PERIOD
        ),
        "count",
        1,
    ),
    "SOAP": (lambda: keras_tfopt.SOAP(0.1, precondition_frequency=PERIOD), "Q_0", 1),
    "Shampoo": (lambda: keras_tfopt.Shampoo(0.1, svd_interval=PERIOD), "H_0", 0),
    "DistributedShampoo": (
        lambda: keras_tfopt.DistributedShampoo(0.1, precondition_frequency=PERIOD),
        "H_0",
        0,
    ),
}


def counted(runner, number):
    """Let the next step be the one after `number`."""
    optimizer = runner.optimizer
    while optimizer is not None:
        optimizer.iterations.assign(number)
        optimizer = getattr(optimizer, "inner_optimizer", None)


@every_mode
@pytest.mark.parametrize("name", PERIODIC)
def test_periods(name, mode):
    make, slot, remainder = PERIODIC[name]
    runner, random = Runner(make(), {"kernel": np.ones((4, 3))}, mode), np.random.default_rng(0)
    counted(runner, MANY)
    changed, last = [], None
    for number in range(MANY + 1, MANY + 1 + STEPS):
        runner.step({"kernel": random.standard_normal((4, 3))})
        now = np.array(runner.slots["kernel"][slot])
        if last is not None and not np.array_equal(now, last):
            changed.append(number)
        last = now
    expected = [n for n in range(MANY + 2, MANY + 1 + STEPS) if n % PERIOD == remainder]
    assert changed == expected


@every_mode
def test_a_row_that_misses_a_step(mode):
    """Its moment decays once for that step."""
    optimizer = keras_tfopt.LazyAdam(0.1, catch_up=True, row_variables=["table"])
    runner = Runner(optimizer, {"table": np.ones((2, 1))}, mode)
    counted(runner, MANY)
    runner.step({"table": np.ones((2, 1))})
    runner.step({"table": np.array([[1.0], [0.0]])})
    runner.step({"table": np.ones((2, 1))})
    m = to_numpy(runner.slots["table"]["m"])
    np.testing.assert_allclose(m[1], 0.1 * 0.9**2 + 0.1, rtol=1e-5)
