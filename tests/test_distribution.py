"""Training on two devices gives the weights and the state of training on one device.

workers/distribution_worker.py trains in a process of its own, and describes the runs. The tests
here compare its results.
"""

import collections

import numpy as np
import pytest

from tests.cases import CASES
from tests.helpers import distribution_runs as worker
from tests.helpers import worker_processes
from tests.helpers.compositions import IN_PROCESSES
from tests.helpers.stepping import BACKEND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("distribution"),  # the fixture is costly: once, not once per worker
]

# Devices add and multiply in another order, so results differ by some units in the last place.
TOLERANCE = 1e-5
CONTROL_STEPS = "loop" if BACKEND == "torch" else "fit"


def spread_runs():
    for spread, steps, run in worker.every_run():
        if spread != "one":
            optimizer = worker.optimizer_of(run)
            here = pytest.mark.cell(optimizer=optimizer, invariant=f"{spread} {steps}")
            marks = [here] if optimizer in {case.name for case in CASES} else []
            yield pytest.param(spread, steps, run, marks=marks)


every_run = pytest.mark.parametrize(("spread", "steps", "run"), list(spread_runs()))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return {(spread, steps, run): {name: array}}."""
    out = tmp_path_factory.mktemp("distribution") / "results.npz"
    limit = 7200 if IN_PROCESSES else 900
    run = worker_processes.run if BACKEND == "torch" else worker_processes.run_alone
    ended = run("tests.workers.distribution_worker", out, limit=limit)
    for process in ended if BACKEND == "torch" else [ended]:
        assert process.status == 0, process.text[-4000:]
    found = collections.defaultdict(dict)
    with np.load(out) as arrays:
        for key, array in arrays.items():
            spread, steps, run, name = key.split("/", 3)
            found[spread, steps, run][name] = array
    return found


def trained(results, spread, steps, run):
    """Return the arrays of a run, which must not have failed, and the facts about it."""
    found = results[spread, steps, run]
    assert "error" not in found, str(found["error"])
    facts = {k.removeprefix("fact/"): v.tolist() for k, v in found.items() if k.startswith("fact/")}
    arrays = {k: v for k, v in found.items() if not k.startswith("fact/")}
    assert {"table", "kernel", "bias", "state/0 iteration"} <= set(arrays)
    return arrays, facts


def largest_difference(a, b):
    assert set(a) == set(b)
    return max(worker.difference(a[name], b[name]) for name in a)


@every_run
def test_same_as_on_one_device(spread, steps, run, results):
    one, _ = trained(results, "one", worker.baseline(steps, run), run)
    spread_out, _ = trained(results, spread, steps, run)
    assert all(np.all(np.isfinite(array)) for array in one.values())
    moved = np.max(np.abs(one["table"] - worker.start()[0]), axis=1)
    assert np.max(moved) > 0.01
    assert largest_difference(one, spread_out) <= TOLERANCE


@every_run
def test_the_work_is_really_spread(spread, steps, run, results):
    _, facts = trained(results, spread, steps, run)
    rows, width, classes = worker.VOCABULARY, worker.WIDTH, worker.CLASSES
    batch, length = worker.BATCH, worker.LENGTH
    assert facts.pop("devices") == 2
    if BACKEND == "tensorflow":
        # TensorFlow may compile the same operations of two replicas in different ways. Results then
        # differ by units in the last place.
        assert facts.pop("apart") <= TOLERANCE / 10
        assert facts == {"replicas": 2}
    elif BACKEND == "torch":
        assert facts == {"in_sync": True}
    else:
        slots = facts.pop("slots")
        assert all(slot == facts["table"] for slot in slots)
        assert len(slots) == 2 or run != worker.CONTROL
        by_rows, by_columns = [rows // 2, width], [rows, width // 2]
        batches, table, kernel = [batch, length], [rows, width], [width, classes]
        shapes = {
            "data_parallel": ([batch // 2, length], table, kernel),
            "table_rows": (batches, by_rows, [width // 2, classes]),
            "table_columns": (batches, by_columns, [width, classes // 2]),
            "wide_patterns": (batches, by_rows, [width, classes // 2]),
        }
        assert facts == dict(zip(("batch", "table", "kernel"), shapes[spread]))


def test_the_comparison_can_fail(results):
    """Training on half of each batch gives other weights."""
    one, _ = trained(results, "one", CONTROL_STEPS, worker.CONTROL)
    half, _ = trained(results, "half", CONTROL_STEPS, worker.CONTROL)
    assert largest_difference(one, half) > 1000 * TOLERANCE


@pytest.mark.backends("tensorflow", reason="options run where gradients of replicas are summed")
@pytest.mark.parametrize("option", worker.CLIPPED)
def test_clipping_has_an_effect(option, results):
    clipped, _ = trained(results, "one", CONTROL_STEPS, option)
    unclipped, _ = trained(results, "one", CONTROL_STEPS, "unclipped")
    assert largest_difference(clipped, unclipped) > 1000 * TOLERANCE


@pytest.mark.spread
def test_halves_of_batches_differ():
    """The data has ids in both halves of a batch, in one half, in none, and masked ones."""
    for ids, _ in worker.batches():
        first, second = (set(half.ravel()) for half in np.split(ids, worker.DEVICES))
        assert worker.MASKED in first | second
        assert not (first | second) & set(worker.UNUSED)
        assert first & second - {worker.MASKED}
    assert any(
        set(half.ravel()) != set(ids.ravel())
        for ids, _ in worker.batches()
        for half in np.split(ids, worker.DEVICES)
    )


tensorflow_only = pytest.mark.backends("tensorflow", reason="about strategies of TensorFlow")


@tensorflow_only
def test_an_optimizer_made_outside_of_the_strategy_is_refused(results):
    error = str(results["mirrored", "strayed", "LazyAdam"]["error"])
    assert "ValueError: LazyAdam was created outside of the `tf.distribute.Strategy`" in error


@tensorflow_only
def test_jit_under_mirrored_strategy(results):
    """XLA on CPUs refuses variables on several devices, whatever the optimizer.

    If Keras's Adam works one day, ours has to.
    """
    ours, of_keras = results["mirrored", "jit", "LazyAdam"], results["mirrored", "jit", "keras"]
    if "error" in of_keras:
        assert "from device" in str(of_keras["error"])
        assert "from device" in str(ours["error"])
    else:
        one, _ = trained(results, "one", "fit", "LazyAdam")
        assert largest_difference(one, ours) <= TOLERANCE
