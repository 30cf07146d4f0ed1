"""Optimizers over workers, which are threads of this process: see `tests/threads.py`.

What several processes do is in test_exchanges.py. Here is what depends on no engine.
"""

import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.distributed import Alone, InProcess, OverWorkers
from tests import averaging, threads
from tests.averaging import INPUTS, MOMENTUM, PERIOD, RATE, START, STEPS
from tests.cases import CASES, gradients, initial
from tests.stepping import (
    BACKEND,
    MODES,
    Rows,
    Runner,
    make_variable,
    several_only,
    to_numpy,
    version_of,
)

METHODS = {
    "ModelAverage": lambda inner, **how: keras_tfopt.ModelAverage(inner, PERIOD, **how),
    "ElasticAverage": lambda inner, **how: keras_tfopt.ElasticAverage(inner, PERIOD, **how),
    "AGN": lambda inner, **how: keras_tfopt.AGN(inner, PERIOD, **how),
    "SyncReplicas": lambda inner, **how: keras_tfopt.SyncReplicas(inner, 1, **how),
    "DropStale": lambda inner, **how: keras_tfopt.DropStale(inner, 1, **how),
    "DiLoCo": lambda inner, **how: keras_tfopt.DiLoCo(inner, 0.7, 0.8, PERIOD, **how),
}
AFTER = ("ModelAverage", "ElasticAverage", "AGN", "DiLoCo")  # exchange after updates
every_method = pytest.mark.parametrize("method", METHODS)
VALUES = {"k": np.linspace(-1, 1, 6).reshape(2, 3), "table/embeddings": np.ones((5, 2))}


def together(size, program):
    """Runs workers as threads, which have a context of their own each."""

    def plainly(exchange):
        with keras_tfopt.execution.plain():
            return program(exchange)

    return threads.run(size, plainly)


def momentum(**options):
    return keras_tfopt.Momentum(RATE, MOMENTUM, **options)


def gradient(rank, step, values=VALUES):
    rng = np.random.default_rng(100 * rank + step)
    return {path: rng.normal(size=np.shape(v)).astype("f") for path, v in values.items()}


# A worker alone


@pytest.mark.parametrize(
    ("mode", "base"),
    [
        *((mode, {}) for mode in MODES),
        ("eager", {"gradient_accumulation_steps": 2}),
        ("eager", {"clipnorm": 0.5}),
    ],
)
@every_method
@pytest.mark.spread
def test_one_worker_is_the_optimizer_inside_to_the_bit(method, mode, base):
    for make in (
        lambda: keras_tfopt.LazyAdam(0.1, **base),
        lambda: keras.optimizers.Adam(0.1, **base),
    ):
        ours = Runner(METHODS[method](make()), initial(), mode)
        inner = Runner(make(), initial(), mode)
        for grads in gradients():
            if "keras." in type(inner.optimizer).__module__:
                # Keras's own sums no rows that repeat, and `apply` hands it summed ones.
                grads = {p: None if isinstance(g, Rows) else g for p, g in grads.items()}
            ours.step(grads)
            inner.step(grads)
        # XLA of JAX 0.6 rounds a compiled step otherwise that may be left out.
        old = BACKEND == "jax" and mode == "compiled" and version_of("jax") < (0, 7)
        tolerance = 1e-6 if old else 0
        for path, value in inner.values.items():
            np.testing.assert_allclose(ours.values[path], value, rtol=tolerance)
        state = zip(ours.optimizer.inner_optimizer.variables, inner.optimizer.variables)
        for a, b in state:
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=tolerance)


def test_there_is_no_other_worker_by_default():
    optimizer = keras_tfopt.AGN(momentum())
    assert isinstance(optimizer.exchange, Alone) and optimizer.exchange.size == 1
    assert "exchange" not in optimizer.get_config()


# Several


@pytest.mark.parametrize("micro_steps", (None, 2))
@every_method
def test_two_workers_equal_numpy(method, micro_steps):
    # The reference knows no ages of parts of an update.
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
    if method in AFTER:  # and nothing in the steps between
        updates = STEPS // (micro_steps or 1)
        assert runners[0].optimizer.exchange.exchanges == updates // PERIOD


@every_method
def test_three_workers_equal_those_of_one_process(method):
    def program(exchange):
        runner = Runner(METHODS[method](keras_tfopt.Adam(0.1), exchange=exchange), VALUES)
        for step in range(5):
            runner.step(gradient(exchange.rank, step))
        return runner

    runners = together(3, program)
    start = {path: value.astype("f") for path, value in VALUES.items()}
    run = InProcess(METHODS[method](keras_tfopt.Adam(0.1)), 3, start, synchronous=True)
    with keras_tfopt.execution.plain():
        for step in range(5):
            for rank in range(3):
                run.step(rank, gradient(rank, step))
    for runner, site in zip(runners, run.workers):
        for path in VALUES:
            np.testing.assert_allclose(runner.values[path], site.values[path], rtol=1e-5, atol=1e-6)


def test_everybody_starts_with_the_weights_of_worker_0():
    def program(exchange):
        shifted = {path: value + exchange.rank for path, value in VALUES.items()}
        runner = Runner(METHODS["DiLoCo"](momentum(), exchange=exchange), shifted, dtype="bfloat16")
        return runner.values, runner.slots

    for values, slots in together(3, program):
        for path, value in VALUES.items():
            np.testing.assert_allclose(values[path], value, atol=4e-3)  # of bfloat16
            np.testing.assert_array_equal(slots[path]["center"], values[path])


def test_half_precision_is_exchanged_in_float32():
    def program(exchange):
        optimizer = keras_tfopt.ModelAverage(keras_tfopt.GradientDescent(1.0), 1, exchange=exchange)
        runner = Runner(optimizer, {"x": np.zeros(1)}, dtype="float16")
        runner.step({"x": np.float32([-40000.0])})
        return runner.values["x"]

    # The sum is beyond float16, the mean is not.
    assert all(float(x[0]) == 40000 for x in together(2, program))


@every_method
def test_gradients_of_rows(method):
    """Rows of all workers, some of them zero: as summed by hand."""
    rows = [([0, 1], [1.0, 2.0]), ([1, 3, 3], [4.0, 0.0, 0.0])]

    def program(exchange):
        inner = keras_tfopt.LazyAdam(0.1)
        make = {"SyncReplicas": lambda: keras_tfopt.SyncReplicas(inner, None, exchange=exchange)}
        optimizer = make.get(method, lambda: METHODS[method](inner, exchange=exchange))()
        runner = Runner(optimizer, VALUES)
        indices, values = rows[exchange.rank]
        values = np.repeat(np.float32(values)[:, None], 2, 1)
        for _ in range(PERIOD):
            runner.step({"table/embeddings": Rows(values, np.array(indices, "int32"))})
        return runner

    one, two = together(2, program)
    m = one.slots["table/embeddings"]["m"][:, 0], two.slots["table/embeddings"]["m"][:, 0]
    share = 1 - 0.9**PERIOD
    if method in ("SyncReplicas", "DropStale"):
        # Row 1 is that of both, rows 0 and 3 that of one each.
        for each in m:
            np.testing.assert_allclose(each, share * np.array([1, 3, 0, 0, 0]), rtol=1e-5)
        moved = one.values["table/embeddings"][:, 0] != 1
        assert moved.tolist() == [True, True, False, False, False]
    elif method != "ElasticAverage":  # which pulls every row
        np.testing.assert_allclose(m[0], share * np.array([1, 2, 0, 0, 0]), rtol=1e-5)
        np.testing.assert_allclose(m[1], share * np.array([0, 4, 0, 0, 0]), rtol=1e-5)
    if method != "ElasticAverage":
        for path in VALUES:
            np.testing.assert_array_equal(one.values[path], two.values[path])
        assert (one.values["table/embeddings"][[2, 4]] == 1).all()


def test_a_named_row_of_zeros_is_touched():
    """As without workers: moments of a row that is named decay."""

    def program(exchange):
        optimizer = keras_tfopt.SyncReplicas(keras_tfopt.LazyAdam(0.1), None, exchange=exchange)
        runner = Runner(optimizer, VALUES)
        for value in (1.0, 0.0):
            rows = Rows(np.full((1, 2), value, "f"), np.array([2 + exchange.rank], "int32"))
            runner.step({"table/embeddings": rows})
        return runner.slots["table/embeddings"]["m"][:, 0]

    for m in together(2, program):
        np.testing.assert_allclose(m, [0, 0, 0.09, 0.09, 0], rtol=1e-5)


def test_loss_scales_stay_the_same():
    """One worker overflows: nobody steps, and all halve the scale."""

    def program(exchange):
        optimizer = keras_tfopt.LossScaleOptimizer(
            METHODS["ModelAverage"](momentum(), exchange=exchange), initial_scale=8.0
        )
        runner = Runner(optimizer, {"x": np.ones(2)})
        for step in range(4):
            bad = step == 1 and exchange.rank == 1
            runner.step({"x": np.full(2, np.inf if bad else 8.0 * (1 + exchange.rank))})
        return runner.values["x"], float(optimizer.dynamic_scale), int(optimizer.iterations)

    (x, *one), (y, *other) = together(2, program)
    assert one == other == [4.0, 3]
    np.testing.assert_array_equal(x, y)  # exchanged after the third step that was made


@pytest.mark.parametrize("method", AFTER)
def test_one_worker_leaves_out_a_step_alone(method):
    """It exchanges with the others all the same, and what it left out is in no sum."""

    def program(exchange):
        inner = keras_tfopt.SkipNonFinite(keras_tfopt.GradientDescent(0.1))
        runner = Runner(METHODS[method](inner, exchange=exchange), {"x": np.zeros(1)})
        for step in range(PERIOD):
            bad = step == 1 and exchange.rank == 1
            runner.step({"x": np.full(1, np.nan if bad else 3.0)})
        assert runner.optimizer.inner_optimizer.skipped == exchange.rank
        return float(runner.values["x"][0])

    one, two = together(2, program)
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


# State


def saved(optimizer):
    """What Keras saves of an optimizer and of those inside of it, as it walks through them."""
    stores = []
    for part in parts(optimizer):
        stores.append({})
        part.save_own_variables(stores[-1])
    return stores


def load(optimizer, stores):
    for part, store in zip(parts(optimizer), stores, strict=True):
        part.load_own_variables(store)


def parts(optimizer):
    found = [optimizer, optimizer.inner_optimizer]
    return [*found, getattr(optimizer, "center_optimizer", None)][: 2 + has_center(optimizer)]


def has_center(optimizer):
    return getattr(optimizer, "center_optimizer", None) is not None


def trained(method, exchange, start, steps, stores=None):
    runner = Runner(METHODS[method](keras_tfopt.Adam(0.1), exchange=exchange), start)
    if stores is not None:
        for variable in runner.variables:  # loaded with the model
            variable.assign(start[variable.path])
        load(runner.optimizer, stores)
    for step in steps:
        runner.step(gradient(exchange.rank, step, start))
    return runner.values, saved(runner.optimizer), runner.snapshot()


@every_method
def test_each_worker_goes_on_from_what_it_saved(method):
    """Also between two exchanges, when they have different weights."""
    whole = together(2, lambda exchange: trained(method, exchange, VALUES, range(8)))
    half = together(2, lambda exchange: trained(method, exchange, VALUES, range(5)))
    rest = together(2, lambda e: trained(method, e, half[e.rank][0], range(5, 8), half[e.rank][1]))
    for one, other in zip(whole, rest):
        assert all(np.array_equal(a, b) for a, b in zip(one[2], other[2], strict=True))


@pytest.mark.parametrize("sizes", ((2, 1), (1, 2), (2, 3)))
@every_method
def test_another_number_of_workers_goes_on_from_the_first(method, sizes):
    before, after = sizes
    period = {"ModelAverage": 3, "ElasticAverage": 3, "AGN": 3, "DiLoCo": 3}.get(method, 1)
    steps = range(2 * period)
    (values, stores, _), *_ = together(
        before, lambda exchange: trained(method, exchange, VALUES, steps)
    )
    ends = together(
        after, lambda e: trained(method, e, values, range(2 * period, 4 * period), stores)
    )
    if method in ("ModelAverage", "AGN", "DiLoCo", "SyncReplicas", "DropStale"):
        for other in ends[1:]:
            for path in VALUES:
                np.testing.assert_allclose(other[0][path], ends[0][0][path], rtol=1e-6)
    if after == 1:  # then it is the optimizer inside, from there
        inner = Runner(keras_tfopt.Adam(0.1), values)
        inner.optimizer.load_own_variables(stores[1])
        for step in range(2 * period, 4 * period):
            inner.step(gradient(0, step))
        for path, value in inner.values.items():
            np.testing.assert_array_equal(ends[0][0][path], value)


@every_method
def test_the_center_of_a_single_worker_is_where_it_is(method):
    """So that others who join later are not pulled to where it began."""
    if method not in ("ElasticAverage", "AGN", "DiLoCo"):
        return
    optimizer = METHODS[method](momentum())
    runner = Runner(optimizer, VALUES)
    for step in range(PERIOD):
        runner.step(gradient(0, step))
    for path, value in runner.values.items():
        np.testing.assert_array_equal(runner.slots[path]["center"], value)


def test_all_state_is_set_by_position():
    one = Runner(METHODS["AGN"](keras_tfopt.Adam(0.1)), VALUES)
    for step in range(4):
        one.step(gradient(0, step))
    two = Runner(METHODS["AGN"](keras_tfopt.Adam(0.1)), VALUES)
    two.optimizer.set_weights([to_numpy(v) for v in one.optimizer.variables])
    assert all(
        np.array_equal(to_numpy(a), to_numpy(b))
        for a, b in zip(one.optimizer.variables, two.optimizer.variables, strict=True)
    )


def test_a_model_is_saved_with_the_center(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(METHODS["AGN"](keras_tfopt.Adam(0.1)), "mse")
    x, y = np.ones((8, 2), "f"), np.ones((8, 1), "f")
    model.fit(x, y, batch_size=2, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in ((model, again), (again, model)):
        if BACKEND == "jax":
            one.jax_state_sync()
        assert len(one.optimizer.variables) == len(other.optimizer.variables)
    for a, b in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    for part in (model, again):
        part.fit(x, y, batch_size=2, epochs=1, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


# What is refused


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda e: ({"x": np.ones(2 + e.rank)}, METHODS["AGN"](momentum(), exchange=e)),
            r"same model.*number 0.*\[3\].*\[2\]",
        ),
        (
            lambda e: (
                {"x": np.ones(2), **({"y": np.ones(1)} if e.rank else {})},
                METHODS["AGN"](momentum(), exchange=e),
            ),
            "same model.*2 variables on worker 1, 1 on worker 0",
        ),
        (
            lambda e: ({"x": np.ones(2)}, keras_tfopt.ModelAverage(momentum(), 2 + e.rank, e)),
            "same optimizer.*'interval_steps': 3.*worker 1.*'interval_steps': 2",
        ),
        (
            lambda e: (
                {"x": np.ones(2)},
                METHODS["AGN" if e.rank else "DiLoCo"](momentum(), exchange=e),
            ),
            "same optimizer.*AGN on worker 1, DiLoCo on worker 0",
        ),
        (
            lambda e: (
                {"x": np.ones(2)},
                METHODS["AGN"](momentum(gradient_accumulation_steps=2 + e.rank), exchange=e),
            ),
            "'accumulation': 3",
        ),
        (
            lambda e: (
                {"x": np.ones(2)},
                keras_tfopt.SkipNonFinite(METHODS["AGN"](momentum(), exchange=e)),
            ),
            r"AGN\(SkipNonFinite\(...\)\) instead of SkipNonFinite\(AGN",
        ),
    ],
)
def test_workers_that_do_not_fit_together(build, says):
    def program(exchange):
        values, optimizer = build(exchange)
        Runner(optimizer, values)

    with pytest.raises(ValueError, match=says):
        together(2, program)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3,), "`replicas_to_aggregate`.*at most.*2.*3"),
        ((2, 3), "`total_num_replicas`.*at most.*2.*3"),
        ((1, 1), "`total_num_replicas`.*2.*1"),
    ],
)
def test_numbers_of_replicas(arguments, says):
    def program(exchange):
        optimizer = keras_tfopt.SyncReplicas(momentum(), *arguments, exchange=exchange)
        runner = Runner(optimizer, {"x": np.ones(2)})  # so a model can be loaded
        runner.step({"x": np.ones(2)})

    with pytest.raises(ValueError, match=says):
        together(2, program)


def test_more_replicas_than_the_one_there_is():
    runner = Runner(keras_tfopt.SyncReplicas(momentum(), 2), {"x": np.ones(2)})
    with pytest.raises(ValueError, match="number of workers, 1. Received: 2"):
        runner.step({"x": np.ones(2)})


@several_only
def test_several_optimizers_that_do_not_fit():
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(momentum()))
    with pytest.raises(ValueError, match="MultiOptimizer outside"):
        keras_tfopt.AGN(several)
    with pytest.raises(ValueError, match="`rho` must be given"):
        keras_tfopt.ElasticAverage(several).build([make_variable("x", np.ones(1))])


def test_a_center_where_there_are_no_several_optimizers(monkeypatch):
    """Keras has them since 3.15."""
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer", raising=False)
    assert isinstance(keras_tfopt.AGN(momentum()).center_optimizer, keras_tfopt.Momentum)


def test_other_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="`variables_to_average` must be None"):
        keras_tfopt.SyncReplicas(momentum(), 1, variables_to_average="x")
    with pytest.warns(UserWarning, match="`variables_to_average`.* no variable .*'nothing'"):
        optimizer = keras_tfopt.SyncReplicas(momentum(), 1, None, 0.9, "nothing")
        optimizer.build([make_variable("x", np.ones(1))])
    with pytest.raises(ValueError, match="`age`"):
        keras_tfopt.DropStale(momentum(), 1).age = -1


def test_all_methods_are_here():
    classes = {c.name for c in CASES if issubclass(c.cls, OverWorkers)}
    assert classes == set(METHODS)
    assert json.dumps([METHODS[m](momentum()).get_config() for m in METHODS])
