"""Optimizers of one process do not disturb one another: what they share is compiled code alone."""

import gc
import sys
import threading

import numpy as np
import pytest

import keras_tfopt
from tests.cells import EXHAUSTIVE
from tests.stepping import BACKEND, Runner

MODE = "fast" if BACKEND == "tensorflow" else "compiled"
COUNT = {"tensorflow": 200, "jax": 60, "torch": 200}[BACKEND] * (10 if EXHAUSTIVE else 1)
STEPS = 4
# Pairs that share compiled code but for a number, each with two sets of shapes.
MAKERS = (
    lambda: keras_tfopt.Momentum(0.1),
    lambda: keras_tfopt.Momentum(0.1, momentum=0.5),
    lambda: keras_tfopt.RMSProp(0.1, momentum=0.5, epsilon=1e-3),
    lambda: keras_tfopt.NormalizedSGD(0.1),
    lambda: keras_tfopt.LazyAdam(0.1, epsilon=1e-3),
    lambda: keras_tfopt.StochasticWeightAveraging(keras_tfopt.LazyAdam(0.1, epsilon=1e-2), 1, 2),
)
SHAPES = ({"a": (3,), "b": (2, 4)}, {"a": (40, 30), "b": (700,), "c": (5,)})


def start(shapes, maker):
    rng = np.random.default_rng(maker)
    return {path: rng.normal(size=shape) for path, shape in shapes.items()}


def gradients(shapes, maker, step):
    rng = np.random.default_rng(100 + 10 * maker + step)
    return {path: rng.normal(size=shape) for path, shape in shapes.items()}


def expected():
    """Values of each after each step, operation by operation and alone."""
    known = {}
    for kind in np.ndindex(len(MAKERS), len(SHAPES)):
        maker, shapes = kind[0], SHAPES[kind[1]]
        runner = Runner(MAKERS[maker](), start(shapes, maker), "eager")
        for step in range(STEPS):
            runner.step(gradients(shapes, maker, step))
            known[(*kind, step)] = runner.values
    return known


def assert_as_expected(values, wanted):
    for path, value in values.items():
        np.testing.assert_allclose(value, wanted[path], rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.spread
def test_optimizers_that_come_and_go():
    """Identities and memory of what is gone belong to others soon."""
    known, rng, alive = expected(), np.random.default_rng(0), []
    for number in range(COUNT):
        maker, which = int(rng.integers(len(MAKERS))), int(rng.integers(len(SHAPES)))
        runner = Runner(MAKERS[maker](), start(SHAPES[which], maker), MODE)
        alive.append([runner, maker, which, 0])
        for _ in range(3):
            one = alive[rng.integers(len(alive))]
            runner, maker, which, step = one
            runner.step(gradients(SHAPES[which], maker, step))
            assert_as_expected(runner.values, known[maker, which, step])
            one[3] += 1
            if one[3] == STEPS:
                alive.remove(one)
        del runner, one
        if len(alive) > 12:
            del alive[:: int(rng.integers(2, 5))]
        if number % 10 == 0:
            gc.collect()


@pytest.mark.slow
def test_optimizers_in_threads():
    """Steps of several optimizers at the same time, each with gradients of its own."""
    wanted, found = {}, {}
    shapes = SHAPES[1]

    def train(maker, results):
        runner = Runner(MAKERS[maker](), start(shapes, maker), MODE)
        for step in range(40):
            runner.step(gradients(shapes, maker, step % STEPS))
        results[maker] = runner.values

    makers = range(4)
    for maker in makers:
        train(maker, wanted)
    threads = [threading.Thread(target=train, args=(maker, found)) for maker in makers]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for maker in makers:
        assert_as_expected(found[maker], wanted[maker])
