"""`InProcess`, which simulates workers in one process: recorded schedules, and errors."""

import keras
import numpy as np
import pytest

import keras_tfopt
from integration import replay_workers
from integration.in_process import InProcess
from tests.helpers import averaging
from tests.helpers.averaging import START, STEPS, WORKERS
from tests.helpers.methods import METHODS, momentum
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import to_numpy

RECORDINGS = GOLDEN / "tf1_distributed"
RECORDED = {case.name: case for case in replay_workers.cases(RECORDINGS)}
QUIRK = "SyncReplicasOptimizer__GradientDescent_w2_sparse_duplicates"


@pytest.fixture(autouse=True)
def plainly():
    """Compile nothing: compiling for each worker takes longer than its steps."""
    with keras_tfopt.engine.plain():
        yield


# Recordings


@pytest.mark.parametrize("name", [name for name in RECORDED if name != QUIRK])
@pytest.mark.spread("torch")
def test_recorded_schedule(name):
    problem, error = replay_workers.replay(RECORDED[name])
    assert problem is None
    assert error < 0.25  # of the tolerance, which allows for other machines


@pytest.mark.spread
def test_there_are_all_recordings():
    assert len(RECORDED) == 86
    assert [name for name, case in RECORDED.items() if case.quirk] == [QUIRK]


@pytest.mark.spread("torch")
def test_repeated_rows_are_summed_which_the_original_does_wrongly():
    """The accumulator of the original expects sorted rows. Everything else is as recorded."""
    case = RECORDED[QUIRK]
    run, different = replay_workers.start(case), set()
    for event in range(case.entry["events"]):
        gave = replay_workers.act(run, case, event)
        found = replay_workers.state(run, case, event, gave)
        here = "center/var/embedding"
        if not np.allclose(found[here], case.arrays[here][event], rtol=2e-5, atol=5e-6):
            different.add(event)
        found[here] = case.arrays[here][event]
        problem, *_ = replay_workers.compare(case, event, found)
        assert problem is None
    assert different


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("AGNOptimizer__Adam_w2_p3", {"communication_period": 2}, "x tolerance"),
        ("ElasticAverageOptimizer__Adam_w2_p3_rho", {"rho": 0.76}, "x tolerance"),
        ("ElasticAverageOptimizer__Momentum_w2_p3", {"moving_rate": 0.3991}, "momentum"),
        ("DropStaleGradientOptimizer__Adam_w2_s0", {"staleness": 1}, "global_step"),
        ("ModelAverageOptimizer__Adam_w2_i3", {"interval_steps": 2}, "event 1"),
        ("SyncReplicasOptimizer__Momentum_w2_backup", {"replicas_to_aggregate": 2}, "wait"),
    ],
)
def test_a_replay_finds_what_differs(name, change, says):
    case = replay_workers.cases(RECORDINGS, name)[0]
    case.entry = {**case.entry, "kwargs": {**case.entry["kwargs"], **change}}
    try:
        problem, _ = replay_workers.replay(case)
    except RuntimeError as error:
        problem = str(error)
    assert says in problem


# All workers together


def train(method, micro_steps, sign=1.0, **options):
    """Train workers on what the reference trains on; negate gradients if the sign is -1."""
    inner = momentum(gradient_accumulation_steps=micro_steps, **options)
    start = {"x": np.append(np.full(averaging.INPUTS, START, "f"), np.float32(0))}
    run = InProcess(METHODS[method](inner), WORKERS, start, synchronous=True)
    models = [averaging.Worker(rank) for rank in range(WORKERS)]
    for step in range(STEPS):
        for worker, model in zip(run.workers, models):
            model.x = worker.values["x"].astype(float)
        for rank, model in enumerate(models):
            run.step(rank, [sign * model.gradient(step)])
    return run


@pytest.mark.parametrize("micro_steps", (None, 2))
@pytest.mark.parametrize("method", METHODS)
def test_synchronous_workers_match_the_reference(method, micro_steps):
    run = train(method, micro_steps)
    weights, center = averaging.train(method, micro_steps=micro_steps or 1)
    for worker, want in zip(run.workers, weights):
        np.testing.assert_allclose(worker.values["x"], want, rtol=1e-5, atol=1e-6)
    if center is not None:
        np.testing.assert_allclose(run.center.values["x"], center, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro_steps", (None, 2))
@pytest.mark.parametrize("method", METHODS)
def test_maximize_equals_minimizing_with_negated_gradients(method, micro_steps):
    down = train(method, micro_steps, weight_decay=0.1)
    up = train(method, micro_steps, sign=-1.0, weight_decay=0.1, maximize=True)
    for one, other in zip(down.workers, up.workers):
        np.testing.assert_allclose(one.values["x"], other.values["x"], rtol=1e-6)


def test_the_order_of_workers_matters_only_if_asynchronous():
    def ends(make, order, **how):
        run = InProcess(make, 2, {"x": np.zeros(2, "f")}, **how)
        run.run(order, lambda k, values: {"x": values["x"] - np.float32([1 + k, 3 - k])})
        return run.center.values["x"]

    for make in (
        keras_tfopt.ElasticAverage(keras_tfopt.GradientDescent(0.1), 2, 0.4, 0.0),
        keras_tfopt.AGN(keras_tfopt.Momentum(0.1), 2),
    ):
        one, other = ends(make, [0, 0, 1, 1]), ends(make, [1, 1, 0, 0])
        assert np.abs(one - other).max() > 1e-3
        same = [ends(make, o, synchronous=True) for o in ([0, 0, 1, 1], [1, 1, 0, 0])]
        np.testing.assert_array_equal(*same)
    for make in (
        keras_tfopt.ModelAverage(keras_tfopt.GradientDescent(0.1), 2),
        keras_tfopt.DiLoCo(keras_tfopt.GradientDescent(0.1), period=2),
    ):
        np.testing.assert_array_equal(ends(make, [0, 0, 1, 1]), ends(make, [1, 0, 1, 0]))


@pytest.mark.spread("torch")
def test_the_mean_of_a_row_is_over_the_workers_that_sent_it():
    table = np.zeros((4, 2), "f")
    method = keras_tfopt.SyncReplicas(keras_tfopt.LazyAdam(0.1), None)
    run = InProcess(method, 2, {"table": table, "b": np.zeros(1, "f")}, initial_tokens=0)
    rows = lambda indices: keras_tfopt.RowGradient(  # noqa: E731
        np.full((len(indices), 2), 4.0, "f"), indices, (4, 2)
    )
    assert run.step(0, {"table": rows([0, 1]), "b": np.float32([2])})
    assert run.step(1, {"table": rows([1, 2, 2]), "b": None})
    assert run.aggregate() == 2
    m = run.center.slots["table"]["m"][:, 0]  # 0.1 of the gradient: 4, (4 + 4) / 2, 8, none
    np.testing.assert_allclose(m, [0.4, 0.4, 0.8, 0.0], rtol=1e-6)
    np.testing.assert_allclose(run.center.slots["b"]["m"], [0.2], rtol=1e-6)


def test_a_stock_optimizer_and_a_wrapper_inside():
    for inner in (
        keras.optimizers.Adam(0.1),
        keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1), 0.5),
    ):
        run = InProcess(keras_tfopt.AGN(inner, 2), 2, {"scope/x": np.ones(3, "f")})
        assert run.run([0, 1, 0], lambda k, values: values) == [False, False, True]
        assert run.workers[0].updates == 2 and run.workers[1].updates == run.global_step == 1
        np.testing.assert_array_equal(
            run.workers[0].values["scope/x"], run.center.values["scope/x"]
        )
        assert (run.workers[1].values["scope/x"] != run.center.values["scope/x"]).all()
        assert "gradient_sum" in run.workers[0].slots["scope/x"]


# Errors


def adam():
    return keras_tfopt.Adam(0.1)


def drop_stale():
    return InProcess(keras_tfopt.DropStale(adam(), 0), 1, {"x": np.ones(1)})


def replicas(needed, workers, **how):
    return InProcess(keras_tfopt.SyncReplicas(adam(), needed), workers, {"x": 1.0}, **how)


def waiting():
    run = InProcess(keras_tfopt.ModelAverage(adam(), 1), 3, {"x": np.ones(1)})
    run.step(0, [np.ones(1)])
    run.step(2, [np.ones(1)])
    return run


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda: InProcess(adam(), 2, {"x": 1.0}), TypeError, "OverWorkers"),
        (lambda: InProcess(keras_tfopt.AGN(adam()), 0, {"x": 1.0}), ValueError, "`workers`.*0"),
        (lambda: InProcess(keras_tfopt.AGN(adam()), 2, {}), ValueError, "`variables`"),
        (lambda: waiting().step(0, [np.ones(1)]), RuntimeError, r"Worker 0 waits.*\[1\]"),
        (lambda: waiting().step(3, [np.ones(1)]), ValueError, "`worker`.*0 to 2.*3"),
        (lambda: waiting().step(1, [np.ones(2)]), ValueError, "'x'.*shape"),
        (lambda: waiting().step(1, {"y": np.ones(1)}), ValueError, "`gradients`.*x"),
        (lambda: waiting().step(1, [None]), ValueError, "at least one"),
        (lambda: waiting().apply(1), ValueError, "ModelAverage.*`apply`"),
        (lambda: waiting().read(1, [np.ones(1)]), ValueError, "ModelAverage.*`read`"),
        (lambda: waiting().aggregate(), ValueError, "ModelAverage.*`aggregate`"),
        (lambda: drop_stale().apply(0), RuntimeError, "call `read` first"),
        (lambda: replicas(2, 2).aggregate(), RuntimeError, "waits for 2 gradients.*0"),
        (lambda: replicas(3, 1, initial_tokens=1), ValueError, "too few tokens.*2 are needed.*1"),
        (lambda: replicas(3, 2, synchronous=True), ValueError, "`replicas_to_aggregate`.*2.*3"),
    ],
)
def test_refused(act, error, says):
    with pytest.raises(error, match=says):
        act()


def test_the_example_of_the_documentation():
    method = keras_tfopt.ElasticAverage(keras_tfopt.GradientDescent(0.1), 2, rho=0.0)
    run = InProcess(method, 2, {"x": [0.0]})
    for worker in (0, 0, 1, 0, 1):
        run.step(worker, {"x": run.workers[worker].values["x"] - worker})
    # Worker 0 stays at 0. Worker 1 goes to 0.1 and 0.19, of which the center takes 0.9 / 4.
    np.testing.assert_allclose(run.center.values["x"], [0.19 * 0.9 / 4], rtol=1e-6)
    assert to_numpy(run.center.optimizer.iterations) == 0
