"""The way to add an optimizer that CONTRIBUTING.md describes, walked in a copy of the project."""

import re
import shutil

import pytest

from tests.helpers.programs import ROOT, run

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAME = "Signum"
# Of the tests of an optimizer, some that are fast: its numbers, arguments, export and docstring,
# and what it does with NaN.
TESTS = (
    *("test_contract.py", "test_bad_input.py", "test_architecture.py"),
    *("test_documentation.py", "test_interruptions.py"),
)
FAST = (
    "reference_in_float32 or hyperparameters or exported_and_documented or quadratic "
    "or documented or defaults_are_right or nan_and_infinity"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spread("torch"),  # where operations lose NaN
    pytest.mark.xdist_group("contributing"),
]


def blocks():
    """{file: (place, code)}, from the blocks that begin with `# file` or `# file: place`."""
    section = TEXT[TEXT.index("## Adding an optimizer") : TEXT.index("## A rule that stays yours")]
    found = re.findall(r"^```python\n# ([^\s:]+)(?:: ([^\n]*))?\n(.*?)^```", section, re.M | re.S)
    return {file: (place, code) for file, place, code in found}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project to which Signum has been added."""
    root = tmp_path_factory.mktemp("project")
    for folder in ("keras_tfopt", "tests", "integration"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("golden", "__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", root)
    for file, (place, code) in blocks().items():
        path = root / file
        assert path.exists() == bool(place), file
        text = path.read_text(encoding="utf-8") if place else ""
        if place == "among the imports":
            text = text.replace("\nfrom ", f"\n{code}from ", 1)
        elif place == "at the end of CASES":
            assert text.endswith("\n)\n")
            text = text.removesuffix(")\n") + code + ")\n"
        else:
            assert not place, f"{file}: where is {place!r}?"
            text = code
        path.write_text(text, encoding="utf-8")
    return root


def run_tests(project, chosen):
    """Run what `make test-case` runs, for Signum on this backend, with the chosen tests only."""
    files = [f"tests/{name}" for name in TESTS]
    options = ["-p", "no:cacheprovider", "--optimizer", NAME, "-k", chosen]
    return run("-m", "pytest", *files, *options, cwd=project, PYTHONPATH=str(project))


def test_the_command_is_the_one_of_make():
    """`make test-case` gives pytest the option that this file tries."""
    recipe = re.search(r"^test-case:.*\n(.*)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1]
    assert "--optimizer $(NAME)" in recipe and "make test-case NAME=Signum" in TEXT


def test_the_name_is_written_in_four_places():
    places = [code for _, code in blocks().values()]
    assert len(places) == 4
    assert sum(f"class {NAME}(" in code for code in places) == 2


def test_an_optimizer_that_is_added_as_described_passes(project):
    done = run_tests(project, FAST)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 8, done.stdout[-3000:]


def test_a_wrong_formula_fails_and_the_report_says_what_to_do(project):
    rule = project / "keras_tfopt" / "rules" / "signum.py"
    right = rule.read_text(encoding="utf-8")
    wrong = right.replace(" sign(m)", " sign(g)")
    assert wrong != right
    rule.write_text(wrong, encoding="utf-8")
    try:
        done = run_tests(project, "reference_in_float32 and eager")
    finally:
        rule.write_text(right, encoding="utf-8")
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    failed = re.findall(r"^FAILED \S+?::(\w+)\[Signum", done.stdout, re.M)
    assert "test_matches_its_reference_in_float32" in failed
    assert "Compare `update` with the class in tests/reference/" in done.stdout
