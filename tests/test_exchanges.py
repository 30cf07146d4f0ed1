"""Two workers train over each engine of this backend, and match two workers in NumPy.

tests/workers/exchange_worker.py trains in processes of its own, and writes the results.
"""

import collections
import json

import keras
import numpy as np
import pytest

import keras_tfopt
import keras_tfopt.distributed as distributed
from tests.cells import EXHAUSTIVE
from tests.helpers import averaging, worker_processes
from tests.helpers.stepping import BACKEND
from tests.workers import exchange_worker

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exchanges")]

TOLERANCE = 1e-6  # of float32 after eight steps
PROCESSES = "processes"
AVERAGES = {"evaluated", "ending_with_averages"}
SPECIAL = {"mixed_dtypes", "other_models", "frozen_alike", "compiled_by_xla", "metrics_of_all"}
SPECIAL |= {"ending_with_averages"}
OF_WORKERS = {"weights", "averages"}  # results that have an item for each worker of a process
RUNS = [(e or PROCESSES, *run) for e in exchange_worker.ENGINES for run in exchange_worker.runs(e)]
RESUMED = [(engine, method) for engine, kind, method in RUNS if kind == "resumed"]
if not EXHAUSTIVE:
    RESUMED = list(dict(RESUMED).items())  # one method for each engine


def has_its_own_test(engine, kind, method):
    return kind in SPECIAL or (engine, kind) == ("mirrored", "inside")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Run the workers of each engine; return {engine: folder with its results}."""
    found = {}
    for engine in dict.fromkeys(engine for engine, *_ in RUNS):
        found[engine] = folder = tmp_path_factory.mktemp(engine)
        if engine == PROCESSES:
            ended = worker_processes.run("tests.workers.exchange_worker", folder)
        elif engine == "mesh_of_processes":
            ended = worker_processes.run("tests.workers.exchange_worker", folder, engine)
        else:
            ended = [worker_processes.run_alone("tests.workers.exchange_worker", folder, engine)]
        for worker in ended:
            assert worker.status == 0, worker.text[-4000:]
    return found


@pytest.fixture(scope="module")
def results(folders):
    """Return {(engine, run): [result of each worker]}."""
    found = collections.defaultdict(list)
    for engine, folder in folders.items():
        for path in sorted(folder.glob("[01].json")):
            for run, result in json.loads(path.read_text()).items():
                count = max([len(result[n]) for n in OF_WORKERS & result.keys()], default=1)
                found[engine, run] += [
                    {n: value[place] if n in OF_WORKERS else value for n, value in result.items()}
                    for place in range(count)
                ]
    return found


def expected(engine, kind, method):
    """Return the weights of each worker and the center, computed in NumPy."""
    stale = ()
    if kind == "loop":
        ranks = range(averaging.WORKERS)
        shared = engine in ("jax_mesh", "mirrored")
        ages = {rank: exchange_worker.stale(rank, shared) for rank in ranks}
        stale = [(step, rank) for rank, steps in ages.items() for step in steps]
    more = {
        "accumulating": {"micro_steps": 2},
        "from_one": {"steps": 6, "alone": 3},
        "table": {"make": averaging.WorkerWithTable},
        "leaving_out": {"left_out": [exchange_worker.LEFT_OUT_STEP]},
    }
    return averaging.train(method, stale, **more.get(kind, {}))


@pytest.mark.parametrize(
    ("engine", "kind", "method"), [run for run in RUNS if not has_its_own_test(*run)]
)
def test_same_as_in_numpy(engine, kind, method, results):
    workers = results[engine, f"{kind}/{method}"]
    assert len(workers) == averaging.WORKERS
    weights, center = expected(engine, kind, method)
    for worker, known in zip(workers, weights):
        assert "error" not in worker, worker["error"]
        np.testing.assert_allclose(worker["weights"], known, rtol=0, atol=TOLERANCE)
        if center is None:
            assert worker["center"] is None
        else:
            np.testing.assert_allclose(worker["center"], center, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("engine", "kind"), [run[:2] for run in RUNS if run[1] in AVERAGES])
def test_averages_are_those_of_each_worker(engine, kind, results):
    workers = results[engine, f"{kind}/ModelAverage"]
    assert len(workers) == averaging.WORKERS
    first = 0 if kind == "evaluated" else 1  # `use_ema` begins with the first step
    for worker, known in zip(workers, averaging.averages_of_two_steps("ModelAverage", first)):
        assert "error" not in worker, worker["error"]
        np.testing.assert_allclose(worker["averages"], known, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("engine", [r[0] for r in RUNS if r[1] == "mixed_dtypes"])
def test_mixed_dtypes(engine, results):
    workers = results[engine, "mixed_dtypes/ModelAverage"]
    known = averaging.train_in_two_layers()
    for worker in workers:
        assert "error" not in worker, worker["error"]
        assert worker["dtypes"] == ["bfloat16", "float32"]
        assert worker["weights"] == workers[0]["weights"]
        # bfloat16 has steps of 0.4% at 1, and each of eight updates is rounded once or twice.
        np.testing.assert_allclose(worker["weights"], known, rtol=0, atol=0.03)
    moved = np.abs(known - np.array([1, 1, 1, 0, 1, 0]))
    assert np.max(moved) > 0.1


@pytest.mark.parametrize("engine", [r[0] for r in RUNS if r[1] == "metrics_of_all"])
def test_metrics_count_the_batches_of_all_replicas(engine, results):
    for worker in results[engine, "metrics_of_all/ModelAverage"]:
        assert "error" not in worker, worker["error"]
        assert worker["fitted"].keys() == worker["evaluated"].keys() == {"loss", "mae"}
        assert worker["fitted"] == pytest.approx(worker["evaluated"], rel=1e-5)


def test_different_models_are_refused(results):
    for worker in results[PROCESSES, "other_models/AGN"]:
        assert "All workers must have the same model. Received: 2 variables" in worker["error"]
        assert "['kernel', [3, 2], 'float32'] and ['kernel', [3, 1], 'float32']" in worker["error"]


def test_all_take_the_frozen_weights_of_the_first_one(results):
    for worker in results[PROCESSES, "frozen_alike/ModelAverage"]:
        assert "error" not in worker, worker["error"]
        assert worker["frozen"] == [1.0] * exchange_worker.INPUTS


@pytest.mark.backends("tensorflow", reason="only TensorFlow cannot exchange inside XLA")
@pytest.mark.parametrize("method", ["ModelAverage", "SyncReplicas"])
def test_steps_compiled_by_xla_are_refused(method, results):
    for worker in results[PROCESSES, f"compiled_by_xla/{method}"]:
        assert "compile the model with `jit_compile=False`" in worker["error"]


@pytest.mark.backends("tensorflow", reason="replicas of a strategy are TensorFlow's")
def test_replicas_need_the_outermost_optimizer(results):
    for worker in results["mirrored", "inside/ModelAverage"]:
        assert "ModelAverage must be the outermost optimizer" in worker["error"]


@pytest.mark.parametrize(("engine", "method"), RESUMED)
def test_one_worker_continues_from_a_model_of_several(engine, method, folders):
    """It steps as the optimizer inside, to the bit."""
    path = folders[engine] / f"{method}-0.keras"
    assert isinstance(distributed.current(), distributed.Alone)
    model, inner = keras.models.load_model(path), keras.models.load_model(path)
    assert type(model.optimizer).__name__ == method
    assert int(model.optimizer.iterations) == 4
    inner.optimizer = inner.optimizer.inner_optimizer
    x, y = (part[4] for part in averaging.batches(0))
    for each in (model, inner):
        compiled = {"jit_compile": False} if BACKEND == "tensorflow" else {}
        optimizer = each.optimizer
        each.compile(optimizer, "mse", **compiled)
        each.fit(x, y, batch_size=averaging.BATCH, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), inner.get_weights()):
        np.testing.assert_array_equal(a, b)
    start = keras.models.load_model(path).get_weights()[0]
    assert np.max(np.abs(model.get_weights()[0] - start)) > 1e-4


@pytest.mark.spread
def test_the_methods_differ():
    """No two methods end at the same weights, so the comparisons can tell them apart."""
    ends = {m: np.array(averaging.train(m)[0]).ravel() for m in exchange_worker.METHODS}
    for a in ends:
        for b in ends:
            assert a == b or np.max(np.abs(ends[a] - ends[b])) > 1e-3, (a, b)


# ---- An engine that a user writes ----------------------------------------------------------------


class Twin(distributed.Exchange):
    """The smallest engine: a second worker that always has the values of the first one."""

    size = 2

    def __init__(self):
        self.sums = 0

    def all_reduce_sum(self, tensors):
        self.sums += 1
        return [2 * tensor for tensor in tensors]

    def broadcast(self, arrays):
        return arrays

    def gather(self, text):
        return [text, text]


def test_an_engine_is_one_class():
    exchange = Twin()
    with distributed.connect(engine=exchange) as workers:
        assert workers is distributed.current() is exchange
        optimizer = distributed.ModelAverage(keras_tfopt.Momentum(0.1), 2)
        variable = keras.Variable(np.ones(3, "float32"))
        optimizer.apply([keras.ops.ones(3)], [variable])
        optimizer.apply([keras.ops.ones(3)], [variable])
    assert exchange.sums
    # 1 - 0.1 - 0.1 * 1.9, which both workers have
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable.value), np.full(3, 0.71), 1e-6)
    assert isinstance(distributed.current(), distributed.Alone)


@pytest.mark.parametrize(
    ("receive", "error", "says"),
    [
        (lambda self, total, x, s, t: total / 2, TypeError, "variable and a dictionary"),
        (lambda self, total, x, s, t: (x, {"center": x}), KeyError, "'center'.*Described"),
    ],
)
def test_a_wrong_exchange_of_a_user(receive, error, says):
    members = {"updates_between": lambda self: 1, "receive": receive}
    own = type("Own", (distributed.OverWorkers,), members)
    with distributed.connect(engine=Twin()), pytest.raises(error, match=f"Own.receive .*{says}"):
        own(keras_tfopt.Momentum(0.1)).apply([keras.ops.ones(3)], [keras.Variable(np.ones(3))])
