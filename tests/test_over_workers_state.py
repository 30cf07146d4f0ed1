"""State and errors of optimizers over workers that are threads of this process."""

import json

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.distributed import OverWorkers
from tests.cases import CASES
from tests.helpers.averaging import PERIOD
from tests.helpers.methods import AFTER, METHODS, momentum
from tests.helpers.stepping import BACKEND, Runner, make_variable, several_only, to_numpy
from tests.helpers.threads import VALUES, gradient, together, train

every_method = pytest.mark.parametrize("method", METHODS)


# State


def saved(optimizer):
    """Return what Keras saves of an optimizer and of the optimizers inside."""
    stores = []
    for part in parts(optimizer):
        stores.append({})
        part.save_own_variables(stores[-1])
    return stores


def load(optimizer, stores):
    for part, store in zip(parts(optimizer), stores, strict=True):
        part.load_own_variables(store)


def parts(optimizer):
    center = optimizer.center_optimizer
    return [optimizer, optimizer.inner_optimizer, *([] if center is None else [center])]


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
def test_each_worker_continues_from_its_own_state(method):
    """The state is saved between two exchanges, when workers have different weights."""
    whole = together(2, lambda exchange: trained(method, exchange, VALUES, range(8)))
    half = together(2, lambda exchange: trained(method, exchange, VALUES, range(5)))
    rest = together(2, lambda e: trained(method, e, half[e.rank][0], range(5, 8), half[e.rank][1]))
    for one, other in zip(whole, rest):
        assert all(np.array_equal(a, b) for a, b in zip(one[2], other[2], strict=True))


@pytest.mark.parametrize("sizes", ((2, 1), (1, 2), (2, 3)))
@every_method
def test_another_number_of_workers_continues_from_the_first_worker(method, sizes):
    before, after = sizes
    period = PERIOD if method in AFTER else 1
    steps = range(2 * period)
    (values, stores, _), *_ = together(
        before, lambda exchange: trained(method, exchange, VALUES, steps)
    )
    ends = together(
        after, lambda e: trained(method, e, values, range(2 * period, 4 * period), stores)
    )
    if method != "ElasticAverage":
        for other in ends[1:]:
            for path in VALUES:
                np.testing.assert_allclose(other[0][path], ends[0][0][path], rtol=1e-6)
    if after == 1:  # a single worker steps as the optimizer inside
        inner = Runner(keras_tfopt.Adam(0.1), values)
        inner.optimizer.load_own_variables(stores[1])
        for step in range(2 * period, 4 * period):
            inner.step(gradient(0, step))
        for path, value in inner.values.items():
            np.testing.assert_array_equal(ends[0][0][path], value)


@pytest.mark.parametrize("method", ("ElasticAverage", "AGN", "DiLoCo"))
def test_the_center_of_a_single_worker_follows_its_weights(method):
    """Else workers that join later would be pulled to old weights."""
    optimizer = METHODS[method](momentum())
    runner = Runner(optimizer, VALUES)
    for step in range(PERIOD):
        runner.step(gradient(0, step))
    for path, value in runner.values.items():
        np.testing.assert_array_equal(runner.slots[path]["center"], value)


def test_all_state_is_set_by_position():
    one, two = (Runner(METHODS["AGN"](keras_tfopt.Adam(0.1)), VALUES) for _ in range(2))
    for step in range(4):
        one.step(gradient(0, step))
    two.optimizer.set_weights([to_numpy(v) for v in one.optimizer.variables])
    for a, b in zip(one.optimizer.variables, two.optimizer.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


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


# Errors


@pytest.mark.parametrize(
    ("values", "make", "says"),
    [
        (
            lambda rank: {"x": np.ones(2 + rank)},
            lambda e: METHODS["AGN"](momentum(), exchange=e),
            r"same model.*number 0.*\[3\].*\[2\]",
        ),
        (
            lambda rank: {path: np.ones(2) for path in ("x", "y")[: 1 + rank]},
            lambda e: METHODS["AGN"](momentum(), exchange=e),
            "same model.*2 variables on worker 1, 1 on worker 0",
        ),
        (
            None,
            lambda e: keras_tfopt.ModelAverage(momentum(), 2 + e.rank, e),
            "same optimizer.*'interval_steps': 3.*worker 1.*'interval_steps': 2",
        ),
        (
            None,
            lambda e: METHODS["AGN" if e.rank else "DiLoCo"](momentum(), exchange=e),
            "same optimizer.*AGN on worker 1, DiLoCo on worker 0",
        ),
        (
            None,
            lambda e: METHODS["AGN"](momentum(gradient_accumulation_steps=2 + e.rank), exchange=e),
            "'accumulation': 3",
        ),
        (
            None,
            lambda e: keras_tfopt.SyncReplicas(
                keras_tfopt.Adam() if e.rank else momentum(), None, exchange=e
            ),
            "same optimizer.*Adam on worker 1, Momentum on worker 0",
        ),
        (
            None,
            lambda e: METHODS["DropStale"](keras_tfopt.Adam(0.5 + e.rank), exchange=e),
            "same optimizer.*{'learning_rate': 1.5} on worker 1, {'learning_rate': 0.5} on",
        ),
        (
            None,
            lambda e: METHODS["AGN"](
                keras_tfopt.Lookahead(keras_tfopt.Adam(beta_1=0.5 + e.rank / 4)), exchange=e
            ),
            "same optimizer.*0.75.* on worker 1",
        ),
        (
            None,
            lambda e: keras_tfopt.SkipNonFinite(METHODS["AGN"](momentum(), exchange=e)),
            r"AGN\(SkipNonFinite\(...\)\) instead of SkipNonFinite\(AGN",
        ),
    ],
)
def test_workers_with_different_models_or_optimizers(values, make, says):
    def program(exchange):
        Runner(make(exchange), values(exchange.rank) if values else {"x": np.ones(2)})

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
    def make(exchange):
        return keras_tfopt.SyncReplicas(momentum(), *arguments, exchange=exchange)

    values = {"x": np.ones(2)}
    train(2, make, values, 0, None)  # it can be built, so that a model can be loaded
    with pytest.raises(ValueError, match=says):
        train(2, make, values, 1, lambda *_: values)


def test_more_replicas_than_workers():
    runner = Runner(keras_tfopt.SyncReplicas(momentum(), 2), {"x": np.ones(2)})
    with pytest.raises(ValueError, match="number of workers, 1. Received: 2"):
        runner.step({"x": np.ones(2)})


@several_only
def test_a_multi_optimizer_inside():
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(momentum()))
    with pytest.raises(ValueError, match="MultiOptimizer outside"):
        keras_tfopt.AGN(several)
    with pytest.raises(ValueError, match="`rho` must be given"):
        keras_tfopt.ElasticAverage(several).build([make_variable("x", np.ones(1))])


def test_a_center_needs_no_multi_optimizer(monkeypatch):
    """Keras before 3.15 has none."""
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer", raising=False)
    assert isinstance(keras_tfopt.AGN(momentum()).center_optimizer, keras_tfopt.Momentum)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`variables_to_average` must be None"):
        keras_tfopt.SyncReplicas(momentum(), 1, variables_to_average="x")
    with pytest.warns(UserWarning, match="`variables_to_average`.* no variable .*'nothing'"):
        optimizer = keras_tfopt.SyncReplicas(momentum(), 1, None, 0.9, "nothing")
        optimizer.build([make_variable("x", np.ones(1))])
    with pytest.raises(ValueError, match="`age`"):
        keras_tfopt.DropStale(momentum(), 1).age = -1


@pytest.mark.spread
def test_every_class_over_workers_is_a_method():
    classes = {c.name for c in CASES if issubclass(c.cls, OverWorkers)}
    assert classes == set(METHODS)
    assert json.dumps([METHODS[m](momentum()).get_config() for m in METHODS])
