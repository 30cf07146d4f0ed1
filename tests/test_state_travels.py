"""Training that is saved on one backend and continued on another one."""

import itertools

import numpy as np
import pytest

from tests.cases import CASES
from tests.cells import INSTALLED
from tests.helpers.programs import AS_USERS, output_of
from tests.helpers.stepping import BACKEND
from tests.workers import state_worker
from tests.workers.state_worker import MAKERS, TRAVELLERS, ways

several_backends = pytest.mark.skipif(len(INSTALLED) < 2, reason="needs two backends")


@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    """Train and save on each backend, then continue on another one."""
    folder = tmp_path_factory.mktemp("travelled")
    for stage, backend in itertools.product(("train", "continue"), INSTALLED):
        if backend == BACKEND:
            state_worker.main(stage, folder)
            continue
        worker = ("-m", "tests.workers.state_worker", stage, folder)
        output_of(*worker, KERAS_BACKEND=backend, timeout=None, **AS_USERS)
    return folder


def arrays(path):
    with np.load(path) as file:
        return [file[key] for key in file]


def travellers():
    cases = {case.name for case in CASES}
    for name in TRAVELLERS:
        marks = [pytest.mark.cell(optimizer=name)] if name in cases else []
        yield pytest.param(name, marks=marks)


@pytest.mark.slow
@pytest.mark.xdist_group("travelled")
@several_backends
@pytest.mark.backends(INSTALLED[0], reason=f"all backends at once: in the run of {INSTALLED[0]}")
@pytest.mark.parametrize("name", travellers())
def test_training_continues_on_another_backend(name, travelled):
    # Backends round gradients differently: see test_same_fit in test_cross_backend.py.
    tolerance = 1e-6 if name in MAKERS else 1e-5
    for source, target in ways(name):
        expected = arrays(travelled / f"{source}_{name}_after.npz")
        for suffix in ("", "_h5") if name == "lazy" else ("",):
            got = arrays(travelled / f"{source}_{name}_on_{target}{suffix}.npz")
            assert len(got) == len(expected) > 4
            for a, b in zip(got, expected):
                assert a.shape == b.shape
                if a.size:
                    error = np.max(
                        np.abs(np.subtract(a, b, dtype="float64")) / np.maximum(1, np.abs(b))
                    )
                    assert error <= tolerance, f"{source} on {target}{suffix}: {error:.1e}"


@several_backends
def test_every_pair_of_backends_is_tried():
    tried = {way for name in TRAVELLERS for way in ways(name)}
    assert tried == set(itertools.permutations(INSTALLED, 2))
