"""Workers with `ShardedState` train as one worker with the mean gradient does.

workers/sharded_state_worker.py trains in processes of its own. The tests here compare its results.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.distributed import Exchange, ShardedState
from tests.helpers import worker_processes
from tests.helpers.worker_processes import arrays_of, difference

on_torch = [
    pytest.mark.backends("torch", reason="workers on PyTorch share state out"),
    pytest.mark.slow,
    pytest.mark.xdist_group("sharded_state"),
]
RUNS = [
    *("Momentum", "Adam", "clipped", "accumulation", "ema", "ema_overwrite", "groups"),
    *("LAMB", "Muon", "MovingAverage", "SkipNonFinite", "nan", "scaled"),
]
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{(size, rank): {run: arrays}}; the run "facts" has numbers and texts."""
    folder = tmp_path_factory.mktemp("sharded_state")
    return worker_processes.arrays_of_workers(
        "tests.workers.sharded_state_worker", folder, fewer=["Momentum"]
    )


class TestTrained:
    pytestmark = on_torch

    @pytest.mark.parametrize("run", RUNS)
    def test_same_as_one_worker(self, run, results):
        """Both workers have the same weights, state and averages."""
        one = arrays_of(results, 1, 0, run)
        for rank in range(2):
            assert difference(arrays_of(results, 2, rank, run), one) <= TOLERANCE

    @pytest.mark.parametrize("run", ["missing_sharded", "missing_sync"])
    def test_a_gradient_that_a_worker_lacks_is_zero_there(self, run, results):
        one = arrays_of(results, 1, 0, run)
        for rank in range(2):
            assert difference(arrays_of(results, 2, rank, run), one) <= TOLERANCE

    def test_averages_of_other_workers_are_not_swapped(self, results):
        for rank in range(2):
            for name, error in results[2, rank]["facts"]["swapped"].items():
                assert "needs all state of the optimizer" in error, name

    def test_on_four_workers(self, results):
        one = arrays_of(results, 1, 0, "Momentum")
        for rank in range(4):
            assert difference(arrays_of(results, 4, rank, "Momentum"), one) <= TOLERANCE

    def test_same_as_that_of_pytorch(self, results):
        for size, rank in ((2, 0), (2, 1), (4, 3)):
            theirs = arrays_of(results, size, rank, "zero")
            ours = {n: arrays_of(results, size, rank, "Momentum")[n] for n in theirs}
            assert difference(ours, theirs) <= 1e-6

    @pytest.mark.parametrize(("size", "saved_by"), [(1, 4), (2, 1), (2, 2), (2, 4), (4, 4)])
    def test_saved_state_goes_on_with_other_workers(self, size, saved_by, results):
        expected = arrays_of(results, 1, 0, "from_1")
        before = arrays_of(results, 1, 0, "MovingAverage")
        assert max(np.max(np.abs(before[n] - expected[n])) for n in range(7)) > 0.01
        for rank in range(size):
            found = arrays_of(results, size, rank, f"from_{saved_by}")
            assert difference(found, expected) <= TOLERANCE

    def test_memory_of_a_worker(self, results):
        for size, most in ((1, 1), (2, 0.52), (4, 0.28)):
            parts = [results[size, rank]["facts"]["part"] for rank in range(size)]
            assert max(parts) <= most and sum(parts) <= 1.02
        whole, half = (results[size, 0]["facts"]["bytes"] for size in (1, 2))
        assert all(half[run] <= 0.6 * whole[run] for run in whole)
        assert "on another worker" in results[2, 0]["facts"]["splits"]

    def test_diagnose_undoes_its_step_on_both_workers(self, results):
        for rank in range(2):
            assert results[2, rank]["facts"]["undone"] == [7, True]

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            ("model", "Received: GGT, which sees all variables at once"),
            ("built", "Received: Adam, which is built"),
            ("keras", "needs an optimizer of keras_tfopt inside"),
            ("workers", "Received: SyncReplicas, which exchanges between workers itself"),
            ("inside", "write ShardedState(MovingAverage(...)) instead of MovingAverage(Shar"),
            ("twice", "ShardedState goes around an optimizer once"),
            ("shard_state", "wrap the optimizer, without this option, in keras_tfopt.distributed"),
        ],
    )
    def test_refused(self, what, error, results):
        assert error in results[2, 0]["facts"]["refused"][what]


class Two(Exchange):
    size = 2

    def broadcast(self, arrays):
        return arrays

    def gather(self, text):
        return [text] * 2


def test_other_exchanges_are_refused():
    optimizer = ShardedState(keras_tfopt.Adam(), exchange=Two())
    with pytest.raises(ValueError, match="needs workers on PyTorch. On a JAX mesh, give the"):
        optimizer.build([keras.Variable(np.zeros(3, "float32"))])


@pytest.mark.spread
def test_one_worker_alone():
    """It steps as the optimizer inside, to the bit."""
    grads = [np.array([0.3, -2.0], "float32")] * 3
    found = []
    for make in (lambda: keras_tfopt.Adam(0.1), lambda: ShardedState(keras_tfopt.Adam(0.1))):
        variable, optimizer = keras.Variable(np.ones(2, "float32")), make()
        with keras_tfopt.engine.plain():
            for g in grads:
                optimizer.apply([keras.ops.convert_to_tensor(g)], [variable])
        found.append(variable.numpy())
    assert np.array_equal(*found)
