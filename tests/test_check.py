"""`.ci/check.py` runs failed tests again, and counts those that then pass or that come too late."""

import importlib.util
import sys
import time
import types

import pytest

from tests.helpers.paths import ROOT

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.spread

PASSED = '<testcase classname="tests.test_a" name="test_one"/>'
FAILED = '<testcase classname="tests.test_a" name="test_two"><failure/></testcase>'


@pytest.fixture
def check(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location("check", ROOT / ".ci" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    yield module
    sys.modules.pop("matrix", None)


def run_part(check, monkeypatch, *reports, **time_given):
    """Return (what part 2 counted, the arguments of each run), where runs report these tests."""
    left, calls = [*reports], []

    def run_tests(backend, report, workers, arguments):
        calls.append(arguments)
        report.parent.mkdir(exist_ok=True)
        report.write_text(f"<testsuite>{left.pop(0)}</testsuite>")
        return 0

    monkeypatch.setattr(check, "run_tests", run_tests)
    given = {"minutes": None, **time_given}
    options = types.SimpleNamespace(fast=False, pytest_arguments=["-k", "two"], workers=2, **given)
    return check.run_part("jax", 2, 2, options), calls


def test_a_failed_test_that_passes_alone_is_counted_and_named(check, monkeypatch):
    again = FAILED.replace("<failure/>", "")
    counts, (first, second) = run_part(check, monkeypatch, PASSED + FAILED, again)
    assert counts == (2, 0, 0)
    assert check.unsteady == ["jax: tests.test_a.test_two"]
    assert "--part=2/2" in first
    # The second run reads the files of failed tests only, which are in one part.
    assert "--last-failed" in second and not any("--part" in argument for argument in second)
    assert first[-2:] == second[-2:] == ["-k", "two"]


def test_a_test_that_fails_twice_has_failed(check, monkeypatch):
    counts, calls = run_part(check, monkeypatch, PASSED + FAILED, FAILED)
    assert counts == (1, 1, 0) and check.unsteady == [] and len(calls) == 2


def test_many_failed_tests_do_not_run_again(check, monkeypatch):
    counts, calls = run_part(check, monkeypatch, PASSED + FAILED * 6)
    assert counts == (1, 6, 0) and len(calls) == 1


LATE = '<testcase classname="tests.test_b" name="three"><skipped message="{}"/></testcase>'


def test_a_part_has_its_share_of_the_time_and_what_it_leaves_out_is_counted(check, monkeypatch):
    reports = PASSED + LATE.format("no time is left") * 3 + LATE.format("no such thing here")
    given = {"minutes": 5, "end": time.time() + 300, "weight_left": 6}
    counts, [arguments] = run_part(check, monkeypatch, reports, **given)
    [until] = [float(a.removeprefix("--until=")) for a in arguments if a.startswith("--until")]
    assert abs(until - time.time() - 100) < 30
    assert counts == (1, 0, 4)
    assert check.too_late == {"jax: tests.test_b": 3}


def test_without_a_limit_nothing_is_left_out(check, monkeypatch):
    _, [arguments] = run_part(check, monkeypatch, PASSED)
    assert not check.too_late and not any("--until" in argument for argument in arguments)


@pytest.mark.parametrize(("until", "counts"), [("1", (0, 0, 1)), ("4e9", (1, 0, 0))])
def test_tests_that_would_begin_later_are_skipped(check, until, counts, pytester, tmp_path):
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_runtest_setup")
    pytester.makepyfile(test_b="def test_one(): pass")
    report = tmp_path / "report.xml"
    pytester.runpytest_inprocess(f"--until={until}", f"--junitxml={report}")
    assert check.count(report) == counts
    assert check.files_of_late(report) == ["test_b"] * counts[2]
