"""`.ci/check.py` runs failed tests again, and counts those that then pass."""

import importlib.util
import sys
import types

import pytest

from tests.paths import ROOT

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


def run_part(check, monkeypatch, *reports):
    """Return (what part 2 counted, the arguments of each run), where runs report these tests."""
    left, calls = [*reports], []

    def run_tests(backend, report, workers, arguments):
        calls.append(arguments)
        report.parent.mkdir(exist_ok=True)
        report.write_text(f"<testsuite>{left.pop(0)}</testsuite>")
        return 0

    monkeypatch.setattr(check, "run_tests", run_tests)
    options = types.SimpleNamespace(fast=False, pytest_arguments=["-k", "two"], workers=2)
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
