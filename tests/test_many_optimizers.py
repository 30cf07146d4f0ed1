"""Optimizers of one process share compiled code, and do not disturb each other."""

import concurrent.futures
import gc
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.cells import BACKENDS, EXHAUSTIVE, exhaustive
from tests.helpers.stepping import BACKEND, Runner, to_numpy

MODE = "fast" if BACKEND == "tensorflow" else "compiled"
COUNT = {"tensorflow": 200, "jax": 60, "torch": 200}[BACKEND] * (10 if EXHAUSTIVE else 1)
STEPS = 4
NO_DECAY = {"weight_decay": 0}
# Some of these share compiled code except for a number. Each is tried with two sets of shapes.
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
    """Return the values after each step of each optimizer alone, operation by operation."""
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


# Groups of one rule. Different scalars are vectors, with a number for each variable.
GROUPS = (
    dict(weight_decay=0.1, groups=[{"a|b": {"learning_rate_factor": 0.5}}, {"b|d": NO_DECAY}]),
    dict(groups={"a|b": {"learning_rate_factor": 0.5}}),
    dict(weight_decay=0.1, groups={"b|d": {"weight_decay": 0.3}}),
    dict(weight_decay=0.1, groups={"a|b": {"learning_rate_factor": 0.5}}),
)


firsts = [pytest.param(n, marks=pytest.mark.spread(name)) for n, name in enumerate(BACKENDS)]


@pytest.mark.parametrize("first", [*firsts, exhaustive(3)])
def test_optimizers_with_groups_of_one_rule(first):
    for number in range(first, first + len(GROUPS)):
        options, ends = GROUPS[number % len(GROUPS)], []
        for mode in ("eager", MODE):
            values = {path: np.ones((3, 4)) for path in "abcd"}
            runner = Runner(
                keras_tfopt.NadamW(0.1, epsilon=0.01 * (first + 1), **options), values, mode
            )
            for _ in range(2):
                runner.step({path: np.full((3, 4), 0.5) for path in values})
            ends.append(runner.values)
        assert_as_expected(ends[1], ends[0])


@pytest.mark.slow
@pytest.mark.spread("tensorflow")  # on JAX each Runner has a `jit` of its own, which shares nothing
def test_optimizers_that_come_and_go():
    """New optimizers may get the id and the memory of old ones."""
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
        if number % 50 == 0:
            gc.collect()


@pytest.mark.slow
def test_optimizers_in_threads():
    """Steps of several optimizers at the same time, each with gradients of its own."""
    makers, shapes = range(4), SHAPES[1]

    def train(maker):
        runner = Runner(MAKERS[maker](), start(shapes, maker), MODE)
        for step in range(80):
            runner.step(gradients(shapes, maker, step % STEPS))
        return runner.values

    wanted = [train(maker) for maker in makers]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(makers)) as pool:
            found = list(pool.map(train, makers))
    finally:
        sys.setswitchinterval(interval)
    for maker in makers:
        assert_as_expected(found[maker], wanted[maker])


def aligned(shape, value):
    """Return an array at a multiple of 64 bytes, which backends may read without a copy."""
    size = int(np.prod(shape))
    room = np.empty(4 * size + 64, "uint8")
    start = -room.ctypes.data % 64
    array = room[start : start + 4 * size].view("float32").reshape(shape)
    array[:] = value
    return array


@pytest.mark.parametrize("kind", ["dense", "rows", "state"])
def test_arrays_may_be_overwritten_as_soon_as_a_call_returns(kind):
    """A step that is still running has a copy of the array."""
    shape, steps = (40_000, 100) if kind == "rows" else (4_000_000,), 10
    variable = keras.Variable(np.zeros(shape, "float32"))
    optimizer = keras_tfopt.Momentum(0.5, momentum=0.5)
    optimizer.build([variable])
    array = aligned(shape, 1.0)
    indices = np.arange(shape[0], dtype="int32")
    if kind == "state":
        state = [np.array(v.numpy()) for v in optimizer.variables]
        place = [v.path for v in optimizer.variables].index(
            optimizer.slot(variable, "momentum").path
        )
        state[place] = array
        optimizer.set_weights(state)
        array[:] = 1000.0
        assert float(ops.max(optimizer.slot(variable, "momentum"))) == 1.0
        return
    for _ in range(steps):
        array[:] = 1.0
        given = array
        if kind == "rows":
            given = keras_tfopt.RowGradient(array, indices, shape)
        optimizer.apply([given], [variable])
        array[:] = 1000.0
    moved, momentum = 0.0, 0.0
    for _ in range(steps):
        momentum = 0.5 * momentum + 1.0
        moved -= 0.5 * momentum
    np.testing.assert_allclose(to_numpy(variable), moved, rtol=1e-6)
