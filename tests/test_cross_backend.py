"""The three backends agree: the same `fit` gives the same weights.

One process for each backend trains and writes its weights (cross_backend_worker.py). The test
compares each two of them. The processes run as users do, without x64 on JAX. The test process has
x64 on, so other tests cannot check that.
"""

import itertools

import numpy as np
import pytest

from tests.cells import INSTALLED
from tests.helpers.programs import AS_USERS, output_of
from tests.workers.cross_backend_worker import MASKED, TRAINED, UNUSED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("cross_backend"),  # the fixture is costly: once, not once per worker
    pytest.mark.skipif(
        len(INSTALLED) < 2, reason=f"needs two backends, only {INSTALLED} is installed"
    ),
    pytest.mark.backends(
        INSTALLED[0], reason=f"all backends at once: in the run of {INSTALLED[0]}"
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return {backend: {key: array}}."""
    folder = tmp_path_factory.mktemp("cross_backend")
    by_backend = {}
    for backend in INSTALLED:
        out = folder / f"{backend}.npz"
        worker = ("-m", "tests.workers.cross_backend_worker", out)
        output_of(*worker, KERAS_BACKEND=backend, timeout=None, **AS_USERS)
        with np.load(out) as arrays:
            by_backend[backend] = dict(arrays)
    return by_backend


def runs(results, prefix):
    """Return {backend and mode: {rest of the key: array}} of the keys with a prefix."""
    found = {}
    for backend, arrays in results.items():
        for key, value in arrays.items():
            if key.startswith(prefix):
                mode, rest = key[len(prefix) :].split("/", 1)
                found.setdefault(f"{backend} {mode}", {})[rest] = value
    return found


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_same_fit(case, results):
    found = runs(results, f"{case.name}/")
    assert {name.split()[0] for name in found} == set(INSTALLED)
    limit = max(1e-5, case.tolerance(mode="fit"))  # some Cases amplify roundings
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        assert set(a) == set(b) and a
        for key in a:
            assert np.all(np.isfinite(a[key]))
            error = np.max(np.abs(a[key] - b[key]) / np.maximum(1, np.abs(a[key])))
            assert error <= limit, f"{key}: {one} and {other} differ by {error:.1e}"
    for name, run in found.items():
        start = results[name.split()[0]]["start"]
        table = run["2/table"]
        moved = np.any(table != start, axis=1)
        if case.sparse == "rows":
            assert not moved[[MASKED, *UNUSED]].any()
        used = np.setdiff1d(np.arange(len(table)), [MASKED, *UNUSED])
        assert moved[used].all()
        assert not np.array_equal(run["1/table"], table)
