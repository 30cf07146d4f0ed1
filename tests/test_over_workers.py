"""Optimizers over workers that are threads of this process: see `tests/helpers/threads.py`.

test_exchanges.py tests several processes, test_over_workers_state.py tests state and errors.
"""

import contextlib
import os
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from integration.in_process import InProcess
from keras_tfopt.distributed import Alone, Exchange
from tests.cells import exhaustive
from tests.helpers import averaging
from tests.helpers.averaging import INPUTS, PERIOD, START, STEPS
from tests.helpers.methods import AFTER, METHODS, momentum
from tests.helpers.small_model import FEW, gradients, initial
from tests.helpers.stepping import BACKEND, MODES, Rows, Runner, to_numpy, version_of
from tests.helpers.threads import VALUES, gradient, together, train

every_method = pytest.mark.parametrize("method", METHODS)


# One worker

BASES = {
    "defaults": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "clipnorm": {"clipnorm": 0.5},
}
WITH_OPTIONS = [(method, "eager", base) for method in METHODS for base in list(BASES)[1:]]


@pytest.mark.parametrize(
    ("method", "mode", "base"),
    [
        *((method, mode, "defaults") for method in METHODS for mode in MODES),
        *(row if row[0] in ("AGN", "SyncReplicas") else exhaustive(*row) for row in WITH_OPTIONS),
    ],
)
@pytest.mark.spread
def test_one_worker_is_the_optimizer_inside_to_the_bit(method, mode, base):
    for make in (
        lambda: keras_tfopt.LazyAdam(0.1, **BASES[base]),
        lambda: keras.optimizers.Adam(0.1, **BASES[base]),
    ):
        ours = Runner(METHODS[method](make()), initial(paths=FEW), mode)
        inner = Runner(make(), initial(paths=FEW), mode)
        for grads in gradients(paths=FEW):
            if "keras." in type(inner.optimizer).__module__:
                # Keras's optimizers do not sum repeated rows, and ours pass on sums.
                grads = {p: None if isinstance(g, Rows) else g for p, g in grads.items()}
            ours.step(grads)
            inner.step(grads)
        # XLA of JAX 0.6 rounds a step differently if it is in a condition. So does that of today
        # where flags make it compile with less effort.
        compiled = BACKEND == "jax" and mode == "compiled"
        rounds = compiled and (version_of("jax") < (0, 7) or "XLA_FLAGS" in os.environ)
        tolerance = 1e-6 if rounds else 0
        for path, value in inner.values.items():
            np.testing.assert_allclose(ours.values[path], value, rtol=tolerance)
        state = zip(ours.optimizer.inner_optimizer.variables, inner.optimizer.variables)
        for a, b in state:
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=tolerance)


def test_there_is_no_other_worker_by_default():
    optimizer = keras_tfopt.AGN(momentum())
    assert isinstance(optimizer.exchange, Alone) and optimizer.exchange.size == 1
    assert "exchange" not in optimizer.get_config()


# Several workers


@pytest.mark.parametrize("micro_steps", (None, 2))
@every_method
def test_two_workers_equal_numpy(method, micro_steps):
    # The reference has no ages of micro-steps.
    stale = [(2, 1), (5, 0), (5, 1)] if method == "DropStale" and micro_steps is None else []

    def program(exchange):
        inner = momentum(gradient_accumulation_steps=micro_steps)
        start = {"x": np.append(np.full(INPUTS, START), 0.0)}
        runner = Runner(METHODS[method](inner, exchange=exchange), start)
        model = averaging.Worker(exchange.rank)
        for step in range(STEPS):
            if (step, exchange.rank) in stale:
                runner.optimizer.age = 2
            model.x = runner.values["x"].astype(float)
            runner.step({"x": model.gradient(step)})
        return runner

    runners = together(2, program)
    weights, center = averaging.train(method, stale=stale, micro_steps=micro_steps or 1)
    for runner, want in zip(runners, weights):
        np.testing.assert_allclose(runner.values["x"], want, rtol=1e-5, atol=1e-6)
        if center is not None:
            np.testing.assert_allclose(runner.slots["x"]["center"], center, rtol=1e-5, atol=1e-6)
    if method == "DropStale":
        assert [runner.optimizer.stale for runner in runners] == [len(stale)] * 2
        assert [runner.optimizer.age for runner in runners] == [0, 0]
    if method in AFTER:  # these exchange nothing in other steps
        updates = STEPS // (micro_steps or 1)
        assert runners[0].optimizer.exchange.exchanges == updates // PERIOD


@every_method
def test_master_weights_are_exchanged(method):
    """With variables in bfloat16, copies and centers are those of float32."""

    def program(exchange):
        inner = momentum(master_weights=True)
        start = {"x": np.append(np.full(INPUTS, START), 0.0)}
        optimizer = METHODS[method](inner, exchange=exchange)
        runner = Runner(optimizer, start, dtype="bfloat16")
        model = averaging.Worker(exchange.rank)
        model.x = start["x"]
        for slot in ("master_weight", "center", "local_center"):  # bfloat16 does not hold START
            with contextlib.suppress(KeyError):
                optimizer.slot(runner.variables[0], slot).assign(model.x)
        for step in range(STEPS):
            gradient = keras.ops.convert_to_tensor(model.gradient(step), "float32")
            runner.step({"x": gradient})
            model.x = runner.slots["x"]["master_weight"].astype(float)
        return runner

    runners = together(2, program)
    weights, center = averaging.train(method)
    for runner, want in zip(runners, weights):
        slots = runner.slots["x"]
        np.testing.assert_allclose(slots["master_weight"], want, rtol=1e-5, atol=1e-6)
        rounded = keras.ops.cast(slots["master_weight"], "bfloat16")
        np.testing.assert_array_equal(runner.values["x"], to_numpy(rounded))
        if center is not None:
            np.testing.assert_allclose(slots["center"], center, rtol=1e-5, atol=1e-6)


@every_method
def test_three_workers_equal_those_of_one_process(method):
    make = METHODS[method]
    runners = train(3, lambda e: make(keras_tfopt.Adam(0.1), exchange=e), VALUES, 5, gradient)
    start = {path: value.astype("f") for path, value in VALUES.items()}
    run = InProcess(make(keras_tfopt.Adam(0.1)), 3, start, synchronous=True)
    with keras_tfopt.engine.plain():
        for step in range(5):
            for rank in range(3):
                run.step(rank, gradient(rank, step))
    for runner, site in zip(runners, run.workers):
        for path in VALUES:
            np.testing.assert_allclose(runner.values[path], site.values[path], rtol=1e-5, atol=1e-6)


def test_all_workers_start_with_the_weights_of_worker_0():
    def program(exchange):
        shifted = {path: value + exchange.rank for path, value in VALUES.items()}
        runner = Runner(METHODS["DiLoCo"](momentum(), exchange=exchange), shifted, dtype="bfloat16")
        return runner.values, runner.slots

    for values, slots in together(3, program):
        for path, value in VALUES.items():
            np.testing.assert_allclose(values[path], value, atol=4e-3)  # of bfloat16
            np.testing.assert_array_equal(slots[path]["center"], values[path])


def test_half_precision_is_exchanged_in_float32():
    def make(exchange):
        return keras_tfopt.ModelAverage(keras_tfopt.GradientDescent(1.0), 1, exchange)

    # The sum is beyond float16, the mean is not.
    grads = {"x": np.float32([-40000.0])}
    for runner in train(2, make, {"x": np.zeros(1)}, 1, lambda *_: grads, dtype="float16"):
        assert float(runner.values["x"][0]) == 40000


@every_method
def test_gradients_of_rows(method):
    """Workers share some rows, and some rows are zero. The sums are computed by hand."""
    rows = [
        Rows(np.repeat(np.float32(values)[:, None], 2, 1), np.array(indices, "int32"))
        for indices, values in (([0, 1], [1.0, 2.0]), ([1, 3, 3], [4.0, 0.0, 0.0]))
    ]

    def make(exchange):
        inner = keras_tfopt.LazyAdam(0.1)
        if method == "SyncReplicas":  # here the gradients of all workers count
            return keras_tfopt.SyncReplicas(inner, None, exchange=exchange)
        return METHODS[method](inner, exchange=exchange)

    one, two = train(2, make, VALUES, PERIOD, lambda rank, step: {"table/embeddings": rows[rank]})
    m = one.slots["table/embeddings"]["m"][:, 0], two.slots["table/embeddings"]["m"][:, 0]
    share = 1 - 0.9**PERIOD
    if method in ("SyncReplicas", "DropStale"):
        # Both workers have row 1. Rows 0 and 3 belong to one worker each.
        for each in m:
            np.testing.assert_allclose(each, share * np.array([1, 3, 0, 0, 0]), rtol=1e-5)
        moved = one.values["table/embeddings"][:, 0] != 1
        assert moved.tolist() == [True, True, False, False, False]
    elif method != "ElasticAverage":  # it pulls every row
        np.testing.assert_allclose(m[0], share * np.array([1, 2, 0, 0, 0]), rtol=1e-5)
        np.testing.assert_allclose(m[1], share * np.array([0, 4, 0, 0, 0]), rtol=1e-5)
    if method != "ElasticAverage":
        for path in VALUES:
            np.testing.assert_array_equal(one.values[path], two.values[path])
        assert (one.values["table/embeddings"][[2, 4]] == 1).all()


def test_a_named_row_of_zeros_is_touched():
    """Moments of a named row decay, as they do without workers."""

    def make(exchange):
        return keras_tfopt.SyncReplicas(keras_tfopt.LazyAdam(0.1), None, exchange=exchange)

    def rows(rank, step):
        value = np.full((1, 2), 1.0 - step, "f")
        return {"table/embeddings": Rows(value, np.array([2 + rank], "int32"))}

    for runner in train(2, make, VALUES, 2, rows):
        m = runner.slots["table/embeddings"]["m"][:, 0]
        np.testing.assert_allclose(m, [0, 0, 0.09, 0.09, 0], rtol=1e-5)


def test_loss_scales_of_workers_stay_equal():
    """If one worker overflows, no worker steps, and all halve the scale."""

    def make(exchange):
        inner = METHODS["ModelAverage"](momentum(), exchange=exchange)
        return keras_tfopt.LossScaleOptimizer(inner, initial_scale=8.0)

    def grads(rank, step):
        return {"x": np.full(2, np.inf if (rank, step) == (1, 1) else 8.0 * (1 + rank))}

    one, two = train(2, make, {"x": np.ones(2)}, 4, grads)
    for optimizer in (one.optimizer, two.optimizer):
        assert float(optimizer.dynamic_scale) == 4.0 and int(optimizer.iterations) == 3
    # They exchanged after the third step that was made.
    np.testing.assert_array_equal(one.values["x"], two.values["x"])


@pytest.mark.parametrize("policy", ["mixed_float16", "float32"])
@pytest.mark.parametrize("ours", [False, True])
def test_workers_that_may_leave_out_different_steps_are_warned(ours, policy):
    def make(exchange):
        keras.config.set_dtype_policy(policy)  # of this thread
        inner = METHODS["ModelAverage"](momentum(), exchange=exchange)
        return keras_tfopt.LossScaleOptimizer(inner) if ours else inner

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(2, make, {"x": np.ones(2)}, 1, lambda rank, step: {"x": np.ones(2)})
    warned = [str(w.message) for w in caught if "loss scale of its own" in str(w.message)]
    assert len(warned) == (2 if policy == "mixed_float16" and not ours else 0)


@pytest.mark.parametrize(("takes", "says"), [(True, "LossScaleOptimizer"), (False, "bfloat16")])
def test_workers_in_one_process_are_warned_too(takes, says):
    class Replicas(Exchange):
        size, one_process, takes_loss_scale = 2, True, takes

    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = METHODS["ModelAverage"](momentum(), exchange=Replicas())
        with pytest.warns(UserWarning, match=f"a loss scale of its own.*Compile .*{says}"):
            optimizer.build([keras.Variable(np.ones(2))])
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("method", AFTER)
def test_one_worker_may_skip_a_step(method):
    """It still exchanges with the others, and its gradient is in no sum."""

    def make(exchange):
        inner = keras_tfopt.SkipNonFinite(keras_tfopt.GradientDescent(0.1))
        return METHODS[method](inner, exchange=exchange)

    def grads(rank, step):
        return {"x": np.full(1, np.nan if (rank, step) == (1, 1) else 3.0)}

    runners = train(2, make, {"x": np.zeros(1)}, PERIOD, grads)
    assert [runner.optimizer.inner_optimizer.skipped for runner in runners] == [0, 1]
    one, two = (float(runner.values["x"][0]) for runner in runners)
    mean = -0.1 * 3 * (3 + 2) / 2  # three steps on one worker, two on the other
    want = {
        "ModelAverage": mean,
        "AGN": mean / PERIOD,  # one step of the center by a mean of (9 + 6) / 2 / 3
        "DiLoCo": 0.7 * (1 + 0.8) * mean,
    }
    if method == "ElasticAverage":  # without a pull in the first steps, as the center has not moved
        assert np.isfinite([one, two]).all() and one < two < 0
    else:
        np.testing.assert_allclose([one, two], want[method], rtol=1e-5)


def test_averages_of_synchronous_replicas():
    def program(exchange):
        optimizer = keras_tfopt.SyncReplicas(
            keras_tfopt.GradientDescent(1.0), None, None, 0.5, "k", exchange=exchange
        )
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        (kernel,) = model.trainable_variables
        kernel.assign([[4.0]])
        optimizer.build([kernel])
        optimizer.apply([ops.full((1, 1), 1.0 + exchange.rank)], [kernel])
        with keras_tfopt.averaged(model, optimizer):
            average = float(to_numpy(kernel)[0, 0])
        return float(to_numpy(kernel)[0, 0]), average

    assert together(2, program) == [(2.5, 3.25), (2.5, 3.25)]
