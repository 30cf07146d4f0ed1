"""What has to be settled before Keras and its backend are imported."""

import collections
import os

# float64 exists on JAX only with x64 on. Here it is on for the whole run, so that the contract
# can be checked at 1e-12; the tests say every dtype, so float32 stays float32. What users have,
# JAX without x64, runs in the subprocesses of test_cross_backend.py.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_addoption(parser):
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="every optimizer in every test, and the tests marked exhaustive; without, tests that "
        "do not depend on the formula of a rule take one optimizer of each kind that the engine "
        "tells apart",
    )
    parser.addoption(
        "--part",
        default="1/1",
        metavar="I/N",
        help="one of N parts of the test files: a process that has compiled some thousands of "
        "functions has more pieces of memory than Linux allows",
    )


def pytest_configure(config):
    if config.getoption("exhaustive"):
        os.environ["TESTS_EXHAUSTIVE"] = "1"  # for processes that tests start
    config.addinivalue_line(
        "markers", "slow: more than a few seconds; left out of `make test-fast`"
    )
    config.addinivalue_line(
        "markers", "formula: depends on the formula of a rule, so no optimizer is left out"
    )
    config.addinivalue_line("markers", "exhaustive: left out unless the run is exhaustive")


def pytest_collection_modifyitems(config, items):
    number, count = map(int, config.getoption("part").split("/"))
    part_of = _parts(items, count)
    _leave_out(config, items, lambda item: part_of[item.path] != number - 1)
    if config.getoption("exhaustive"):
        return
    from tests.cases import REPRESENTATIVES

    def is_left_out(item):
        if item.get_closest_marker("exhaustive"):
            return True
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        name = getattr(case, "name", None)
        return name and name not in REPRESENTATIVES and not item.get_closest_marker("formula")

    _leave_out(config, items, is_left_out)


def _parts(items, count):
    """Files with their part, of about as many tests each: costly fixtures belong to files."""
    tests, parts = collections.Counter(item.path for item in items), {}
    loads = [0] * count
    for path, number in sorted(tests.items(), key=lambda pair: (-pair[1], str(pair[0]))):
        parts[path] = loads.index(min(loads))
        loads[parts[path]] += number
    return parts


def _leave_out(config, items, condition):
    left_out = [item for item in items if condition(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not condition(item)]


def pytest_report_header(config):
    import keras

    return f"keras {keras.__version__}, backend {keras.backend.backend()}"
