"""Settings that must be made before Keras is imported, and the options of test runs."""

import collections
import difflib
import os
import time

import pytest

# JAX has float64 only if x64 is on. It is on for the whole run, so that tests can compare to 1e-12.
# Tests name every dtype, so float32 stays float32. Users have x64 off. test_cross_backend.py trains
# like that, in processes of its own.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

MOST_TOGETHER = 1000  # tests of a file in one part, see `--part`


def pytest_addoption(parser):
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="every optimizer in every test, and the tests marked exhaustive; without, the runs on "
        "the three backends do so together: see tests/cells.py",
    )
    parser.addoption(
        "--optimizer",
        metavar="NAME",
        help="all tests of one optimizer, exhaustively, and what to do where one fails",
    )
    parser.addoption(
        "--part",
        default="1/1",
        metavar="I/N",
        help="run one of N parts of the tests: after compiling some thousands of functions, a "
        "process has more pieces of memory than Linux allows, and ends",
    )
    parser.addoption(
        "--until",
        type=float,
        help="skip tests that would begin after this moment, in seconds as of `time.time()`",
    )


def pytest_runtest_setup(item):
    until = item.config.getoption("until")
    if until and time.time() > until:
        pytest.skip("no time is left")


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        from keras_tfopt import engine

        engine.compile_in_background(False)  # so that tests of compiled steps never run plain ones
    if config.getoption("exhaustive") or config.getoption("optimizer"):
        os.environ["TESTS_EXHAUSTIVE"] = "1"  # for processes that tests start
    if config.getoption("optimizer"):
        os.environ["TESTS_OPTIMIZER"] = config.getoption("optimizer")
    config.addinivalue_line(
        "markers", "slow: more than a few seconds; left out of `make test-fast`"
    )
    config.addinivalue_line(
        "markers", "formula: depends on the formula of a rule, so every optimizer on every backend"
    )
    config.addinivalue_line(
        "markers", "cell(optimizer, invariant): place in the matrix, if name and Case do not say it"
    )
    config.addinivalue_line(
        "markers",
        "spread(home): on one backend, which is named or chosen by a hash, unless exhaustive",
    )
    config.addinivalue_line("markers", "everywhere: with all parameters, on every backend")
    config.addinivalue_line("markers", "exhaustive: left out unless the run is exhaustive")
    config.addinivalue_line(
        "markers", "backends(*names, reason): skipped on all other backends, for this reason"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest's own selection by `-k`
def pytest_collection_modifyitems(config, items):
    import keras

    from tests import cells

    number, count = map(int, config.getoption("part").split("/"))
    part_of = _parts(items, count)
    _leave_out(config, items, [item for item in items if part_of[id(item)] != number - 1])
    name = config.getoption("optimizer")
    if name:
        _leave_out(config, items, _not_of(name, items, cells))
    elif not config.getoption("exhaustive"):
        from tests.cases import REPRESENTATIVES

        _leave_out(config, items, cells.left_out(items, keras.backend.backend(), REPRESENTATIVES))
    _order(items, cells)
    for item in items:
        mark = item.get_closest_marker("backends")
        if mark and keras.backend.backend() not in mark.args:
            # First, so that pytest reports this reason and not that a mode does not exist.
            item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]), append=False)
        if cell := cells.cell_of(item):  # .ci/matrix.py reads them in the report
            item.user_properties += [*cell._asdict().items(), ("mode", cells.mode_of(item))]


def _not_of(name, items, cells):
    """Return the tests that are not about this optimizer."""
    owners = {id(item): cells.subject_of(item) for item in items}
    if name not in owners.values():
        known = sorted({owner for owner in owners.values() if owner})
        near = difflib.get_close_matches(name, known) or known
        raise pytest.UsageError(f"No test is about {name!r}. Did you mean one of {near}?")
    return [item for item in items if owners[id(item)] != name]


# {test file: what to look at if its tests fail for a new optimizer}
ADVICE = {
    "contract": "Compare `update` with the class in tests/reference/, which is written from the "
    "paper. Where both are right, the Case needs `wider_tolerance`, with the reason. If only "
    "`test_converges` fails, `quadratic` or `rosenbrock` need another learning rate or more steps.",
    "contract_state": "Arguments must be fields, and defaults those of the reference.",
    "rows": "`sparse` of the class and of the reference say what a row gradient does.",
    "architecture": "A rule is pure, documented and exported: the test's name says which is not.",
    "bad_input": "`refused` of the Case lists, for each argument, values that its field refuses.",
    "properties": "`step_scales_with_power` of the Case says by which power steps grow with "
    "gradients; None if there is none.",
    "interruptions": "`steps_are_bounded` of the Case says that an infinite gradient makes a "
    "finite step. Where NaN is lost, use `sign`, `at_least`, `at_most` and `largest` of "
    "keras_tfopt/rules/moments.py: operations of backends differ there.",
    "hyperparameters": "`update` and `scalars` must compute with tensors, not only with numbers.",
    "documentation": "The docstring describes each argument, slot and default.",
    "catalogue": "Run `make catalogue`.",
}


def pytest_terminal_summary(terminalreporter, config):
    """Print what to do about failed tests of one optimizer."""
    failed = terminalreporter.stats.get("failed", [])
    if not (config.getoption("optimizer") and failed):
        return
    terminalreporter.section("what to do")
    files = {report.fspath.rsplit("test_", 1)[-1].removesuffix(".py") for report in failed}
    for name in sorted(files):
        other = "Read the docstring of the test: it says what holds for every optimizer."
        terminalreporter.line(f"test_{name}.py: {ADVICE.get(name, other)}")


def _parts(items, count):
    """Return {id of a test: number of its part}. All parts have about the same number of tests.

    Tests of a file are in the same part if they are not too many.
    """
    seen, together = collections.Counter(), {}
    for item in items:
        together[id(item)] = item.path, seen[item.path] // MOST_TOGETHER
        seen[item.path] += 1
    sizes, parts, loads = collections.Counter(together.values()), {}, [0] * count
    for some, number in sorted(sizes.items(), key=lambda pair: (-pair[1], str(pair[0]))):
        parts[some] = loads.index(min(loads))
        loads[parts[some]] += number
    return {test: parts[some] for test, some in together.items()}


def _order(items, cells):
    """Sort tests, so that one worker runs all of an optimizer: they share compiled code.

    Tests about no optimizer come first, since most take no time. Those that share something, which
    takes long, are before those of optimizers: at the end, other workers would wait for them.
    """
    files = list(dict.fromkeys(item.path for item in items))
    cases = {id(item): getattr(cells.case_of(item), "name", "") for item in items}
    items.sort(
        key=lambda item: (
            1 if item.get_closest_marker("xdist_group") else 2 if cases[id(item)] else 0,
            files.index(item.path),
            cases[id(item)],
        )
    )
    for item in items:
        if cases[id(item)] and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(cases[id(item)]))


def _leave_out(config, items, unwanted):
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        known = {id(item) for item in unwanted}
        items[:] = [item for item in items if id(item) not in known]


def pytest_report_header(config):
    import keras

    return f"keras {keras.__version__}, backend {keras.backend.backend()}"
