"""If one worker fails, the others get an error. Workers are processes of fault_worker.py."""

import atexit
import re
import signal

import numpy as np
import pytest

from keras_tfopt.distributed.exchanges.processes import Processes
from tests.cells import spread
from tests.helpers import averaging, worker_processes
from tests.helpers.stepping import BACKEND, version_of
from tests.workers import fault_worker

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exchanges")]

TIMEOUT = fault_worker.TIMEOUT
# Workers take three seconds to find out who is missing. A busy machine takes longer.
LIMIT = TIMEOUT + 3 + 10
# JAX aborts a process if others give no sign of life for so long.
SILENCE = 100 if BACKEND == "jax" and version_of("jax") < (0, 7) else TIMEOUT + 10
END = LIMIT + SILENCE + 10
MISSED = rf"worker 1 did not (come|answer).*{TIMEOUT} s that `timeout`"


def run(fault, folder, **more):
    """Return the workers, and the seconds from the fault to the error in the others."""
    ended = worker_processes.run("tests.workers.fault_worker", fault, folder, **more)
    assert all(worker.status is not None for worker in ended), "a worker hangs"
    text = "".join(worker.text for worker in ended)
    happened, failed = (re.findall(rf"{what} at (\S+)", text) for what in ("fault", "failed"))
    if not happened:
        return ended, None
    start = float(happened[0])
    assert max(worker.ended for worker in ended) - start < END
    return ended, min(map(float, failed)) - start if failed else None


def assert_clear_error(survivor, seconds, reason, folder):
    """Check that the first of two workers has soon ended with this error, without weights."""
    assert survivor.status != 0
    assert re.search(f"Worker 0 of 2: {reason}", survivor.text), survivor.text[-3000:]
    assert seconds < LIMIT
    assert not list(folder.glob("*.npy"))
    if BACKEND == "jax":
        message = f"gives no sign of life for {SILENCE} s, JAX itself aborts this process"
        assert message in survivor.text  # a warning at the start


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        spread("raises", "worker 1 has ended with OSError: the disk is full"),
        spread("stalls", MISSED),
    ],
)
def test_others_end_with_a_clear_error(fault, reason, tmp_path):
    (survivor, other), seconds = run(fault, tmp_path)
    assert_clear_error(survivor, seconds, f"exchange 2.*{reason}", tmp_path)
    assert other.status != 0
    if fault == "stalls":  # later it finds that the others have gone
        assert "Worker 1 of 2: " in other.text or BACKEND == "jax", other.text[-3000:]


class Noted(Processes):
    """A worker that keeps its notes in a dictionary."""

    def __init__(self, notes, rank):
        super().__init__(rank, size=3, timeout=0.1)
        atexit.unregister(self._at_exit)
        self.notes = notes

    def _put(self, key, text):
        self.notes[key] = text

    def _get(self, key, seconds):
        return self.notes.get(key)


@pytest.mark.spread
def test_a_dead_worker_is_named_where_another_one_has_given_up():
    """Worker 1 dies. Worker 0 waits for it in vain and leaves, before worker 2 comes."""
    notes = {}
    for rank, missing in ((0, "workers 1, 2"), (2, "worker 1")):
        worker = Noted(notes, rank)
        with pytest.raises(RuntimeError, match=f"exchange 1 is impossible: {missing} did not come"):
            worker._meet()
        worker.close()
    assert "left/0" in notes


@pytest.mark.spread
def test_first_worker_dies(tmp_path):
    """The store that all workers use belongs to the first one, and ends with it."""
    (_, survivor), seconds = run("first_killed", tmp_path)
    assert survivor.status not in (0, None)
    if BACKEND == "jax":  # JAX may abort before there is an error
        assert "if worker 0 dies" in survivor.text, survivor.text[-3000:]
    else:
        said = re.search(r"Worker 1 of 2: .*worker 0", survivor.text)
        assert said and seconds < LIMIT, survivor.text[-3000:]


@pytest.mark.spread
def test_unequal_numbers_of_steps(tmp_path):
    (longer, shorter), _ = run("unequal", tmp_path)
    assert shorter.status == 0, shorter.text[-3000:]
    assert longer.status != 0
    said = "exchange 1 is impossible: worker 1 has left after 0 exchanges. Unequal numbers of steps"
    assert said in longer.text, longer.text[-3000:]


@pytest.mark.backends("torch", reason="only there do workers divide state")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("only_one_saves", "worker 1 has left after 16 exchanges"),
        ("only_one_keeps_checkpoints", r"only workers \[0\] read"),
    ],
)
def test_all_workers_must_save_state_that_they_divide(fault, reason, tmp_path):
    (saves, _), _ = run(fault, tmp_path)
    assert saves.status != 0
    said = rf"reading the state that workers divide.*{reason}.*All workers must save"
    assert re.search(said, saves.text), saves.text[-3000:]


@pytest.mark.spread
def test_workers_at_different_steps_of_a_backup_do_not_train(tmp_path):
    ended, _ = run("backup_lost", tmp_path)
    found = []
    for worker in ended:
        assert worker.status != 0
        said = r"at different steps.*Received: step (\d+) here, (\d+) for the other worker"
        found.append(re.search(said, worker.text))
        assert found[-1], worker.text[-3000:]
    first, second = ([int(step) for step in one.groups()] for one in found)
    assert first == second[::-1] and first[0] >= averaging.STEPS > first[1]


@pytest.mark.spread
def test_all_resume_from_their_backups(tmp_path):
    """If one is killed, the other ends. Both resume, to the weights of a run without a fault."""
    (survivor, killed), seconds = run("backup_killed", tmp_path)
    assert_clear_error(survivor, seconds, rf"exchange \d+.*{MISSED}", tmp_path)
    assert killed.status == -signal.SIGKILL
    ended, _ = run("backup", tmp_path)
    known, _ = averaging.train("ModelAverage", steps=2 * averaging.STEPS)
    for rank, worker in enumerate(ended):
        assert worker.status == 0, worker.text[-3000:]
        assert "epochs made: 1" in worker.text  # the first one was in the backup
        weights = np.load(tmp_path / f"weights-{rank}.npy")
        np.testing.assert_allclose(weights, known[rank], rtol=0, atol=1e-6)
