"""The three backends agree: the same gradients, and the same `fit`, give the same weights.

One subprocess per backend trains and writes its weights (cross_backend_worker.py); the files are
compared pairwise here. There are no stored numbers. The subprocesses run without x64 on JAX, as
users do, so this also checks what the contract suite, which runs with x64, cannot.
"""

import itertools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.cases import every_case
from tests.cells import INSTALLED
from tests.cross_backend_worker import MASKED, UNUSED, prescribed

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
    """{backend: {key: array}}"""
    root = pathlib.Path(__file__).parents[1]
    folder = tmp_path_factory.mktemp("cross_backend")
    by_backend = {}
    for backend in INSTALLED:
        out = folder / f"{backend}.npz"
        environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.cross_backend_worker", str(out)],
            env={**environment, "KERAS_BACKEND": backend},
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{backend}:\n{done.stderr[-4000:]}"
        with np.load(out) as arrays:
            by_backend[backend] = dict(arrays)
    return by_backend


def runs(results, prefix):
    """{backend and mode: {rest of the key: array}} of the keys below a prefix."""
    found = {}
    for backend, arrays in results.items():
        for key, value in arrays.items():
            if key.startswith(prefix):
                mode, rest = key[len(prefix) :].split("/", 1)
                found.setdefault(f"{backend} {mode}", {})[rest] = value
    return found


def assert_agree(results, prefix, tolerance):
    found = runs(results, prefix)
    assert {name.split()[0] for name in found} == set(INSTALLED)
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        assert set(a) == set(b) and a
        for key in a:
            assert np.all(np.isfinite(a[key]))
            error = np.max(np.abs(a[key] - b[key]) / np.maximum(1, np.abs(a[key])))
            assert error <= tolerance, f"{key}: {one} and {other} differ by {error:.1e}"
    return found


@pytest.mark.parametrize(
    ("case", "variant"),
    [pytest.param(case, variant, id=f"{case.name}-{variant}") for case, variant in prescribed()],
)
def test_same_gradients(case, variant, results):
    tolerance = case.tolerance("float32", variant)  # 1e-6, unless the case says why not
    found = assert_agree(results, f"steps/{case.name}-{variant}/", tolerance)
    run = next(iter(found.values()))
    assert not np.array_equal(run["1/layer/kernel"], run["2/layer/kernel"])


@every_case("case")
def test_same_fit(case, results):
    found = assert_agree(results, f"fit/{case.name}/", 1e-5)
    for name, run in found.items():
        start = results[name.split()[0]]["fit_start"]
        table = run["2/table"]
        moved = np.any(table != start, axis=1)
        if case.sparse == "rows":
            assert not moved[[MASKED, *UNUSED]].any()
        used = np.setdiff1d(np.arange(len(table)), [MASKED, *UNUSED])
        assert moved[used].all()
        assert not np.array_equal(run["1/table"], table)
