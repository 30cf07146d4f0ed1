"""Settings that must be made before Keras is imported, and the options of test runs."""

import collections
import difflib
import os

import pytest

# JAX has float64 only if x64 is on. It is on for the whole run, so that the contract can be checked
# to 1e-12. Tests name every dtype, so float32 stays float32. Users have JAX without x64:
# test_cross_backend.py trains so, in processes of its own.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


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
        help="one of N parts of the test files: a process that has compiled some thousands of "
        "functions has more pieces of memory than Linux allows",
    )


def pytest_configure(config):
    from keras_tfopt import engine

    engine.compile_in_background(False)  # what is tested as compiled is compiled
    if config.getoption("exhaustive") or config.getoption("optimizer"):
        os.environ["TESTS_EXHAUSTIVE"] = "1"  # for processes that tests start
    config.addinivalue_line(
        "markers", "slow: more than a few seconds; left out of `make test-fast`"
    )
    config.addinivalue_line(
        "markers", "formula: depends on the formula of a rule, so every optimizer on every backend"
    )
    config.addinivalue_line(
        "markers",
        "cell(optimizer, invariant): its place in the matrix, where name and Case do not say it",
    )
    config.addinivalue_line(
        "markers", "spread: on one of the backends, by a hash of its name, unless it is exhaustive"
    )
    config.addinivalue_line("markers", "exhaustive: left out unless the run is exhaustive")
    config.addinivalue_line(
        "markers", "backends(*names, reason): says something on these backends, and why"
    )


@pytest.hookimpl(tryfirst=True)  # before what is left out is left out by names
def pytest_collection_modifyitems(config, items):
    import keras

    from tests import cells

    number, count = map(int, config.getoption("part").split("/"))
    part_of = _parts(items, count)
    _leave_out(config, items, [item for item in items if part_of[item.path] != number - 1])
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
            # Before what pytest says where a mode does not exist.
            item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]), append=False)
        if cell := cells.cell_of(item):  # for the report, of which .ci/matrix.py makes a table
            item.user_properties += [*cell._asdict().items(), ("mode", cells.mode_of(item))]


def _not_of(name, items, cells):
    """Return the tests that are not about this optimizer."""
    owners = {id(item): getattr(cells.cell_of(item), "optimizer", None) for item in items}
    if name not in owners.values():
        known = sorted({owner for owner in owners.values() if owner})
        near = difflib.get_close_matches(name, known) or known
        raise pytest.UsageError(f"No test is about {name!r}. Did you mean one of {near}?")
    return [item for item in items if owners[id(item)] != name]


# What to look at where tests of a new optimizer fail, by the file they are in.
ADVICE = {
    "contract": "Compare `update` with the class in tests/reference/, which is written from the "
    "paper. Where both are right, the Case needs `wider_tolerance`, with the reason.",
    "contract_state": "Arguments must be fields, and defaults those of the reference.",
    "rows": "`sparse` of the class and of the reference say what a row gradient does.",
    "architecture": "A rule is pure, documented and exported: the test's name says which is not.",
    "bad_input": "`refused` of the Case lists, for each argument, values that its field refuses.",
    "properties": "`step_scales_with_power` of the Case says by which power steps grow with "
    "gradients; None if there is none.",
    "interruptions": "`steps_are_bounded` of the Case says that an infinite gradient makes a "
    "finite step.",
    "hyperparameters": "`update` and `scalars` must compute with tensors, not only with numbers.",
    "documentation": "The docstring describes each argument, slot and default.",
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
    """Return the part of each file. Parts have about as many tests each."""
    tests, parts = collections.Counter(item.path for item in items), {}
    loads = [0] * count
    for path, number in sorted(tests.items(), key=lambda pair: (-pair[1], str(pair[0]))):
        parts[path] = loads.index(min(loads))
        loads[parts[path]] += number
    return parts


def _order(items, cells):
    """Put the tests of one optimizer on one worker: they share compiled code.

    Tests that share something else come first. They take long, and workers would wait for them at
    the end.
    """
    files = list(dict.fromkeys(item.path for item in items))
    cases = {id(item): getattr(cells.case_of(item), "name", "") for item in items}
    items.sort(
        key=lambda item: (
            item.get_closest_marker("xdist_group") is None,
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
