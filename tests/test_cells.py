"""`tests/cells.py` chooses tests for each backend, and `.ci/matrix.py` adds up their reports."""

import collections
import importlib.util
import itertools
import pathlib
import types

import pytest

from tests import cells
from tests.helpers.paths import ROOT
from tests.helpers.programs import output_of

pytestmark = pytest.mark.spread

MODES = ("eager", "compiled")
DTYPES = ("float32", "float64")
OPTIMIZERS = [f"Optimizer{n}" for n in range(30)]
REPRESENTATIVES = {"Optimizer3", "Optimizer7"}


class Item:
    """A stand-in for an item of pytest, with the attributes that `cells` reads."""

    def __init__(self, test, case, mode, marks, dtype="float32"):
        self.originalname, self.name = f"test_{test}", f"test_{test}[{case}-{mode}-{dtype}]"
        self.path = pathlib.Path("tests/test_contract.py")
        params = {"case": types.SimpleNamespace(name=case), "mode": mode, "dtype": dtype}
        self.callspec = types.SimpleNamespace(params=params)
        self.marks = marks

    def iter_markers(self, name):
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name):
        return next(self.iter_markers(name), None)

    def __repr__(self):
        return self.name


def suite():
    marked = {
        "formula": [pytest.mark.formula.mark],
        "engine": [],
        "rows": [
            pytest.mark.formula.mark,
            pytest.mark.backends("tensorflow", "torch", reason="...").mark,
        ],
        "rare": [pytest.mark.exhaustive.mark],
    }
    return [
        Item(test, case, mode, marks, dtype)
        for test, marks in marked.items()
        for case in OPTIMIZERS
        for mode in MODES
        for dtype in DTYPES
    ]


@pytest.fixture
def run(monkeypatch):
    """Return {backend: {(test, optimizer): {(mode, dtype)}}} for the tests that run there."""
    monkeypatch.setattr(cells, "INSTALLED", cells.BACKENDS)
    found = {}
    for backend in cells.BACKENDS:
        items = suite()
        left_out = set(map(str, cells.left_out(items, backend, REPRESENTATIVES)))
        found[backend] = collections.defaultdict(set)
        for item in items:
            if str(item) not in left_out:
                test, case = item.originalname[5:], item.callspec.params["case"].name
                params = item.callspec.params
                found[backend][test, case].add((params["mode"], params["dtype"]))
    return found


def how_many(run, test, case):
    """Return how many tests of a cell run on each backend, sorted."""
    return sorted(len(run[backend].get((test, case), ())) for backend in cells.BACKENDS)


def test_tests_of_a_formula_run_for_every_optimizer(run):
    sampled = 0
    for case in OPTIMIZERS:
        represents = case in REPRESENTATIVES
        covered = how_many(run, "engine", case)
        if represents:
            modes = {mode for backend in run.values() for mode, _ in backend["engine", case]}
            assert sum(covered) == 4 and modes == set(MODES)
        else:
            assert covered in ([0, 0, 0], [0, 0, 1])
        sampled += covered == [0, 0, 1]
        assert how_many(run, "rare", case) == [0, 0, 0]
        *away, home = how_many(run, "formula", case)
        assert away == [1, 1]
        assert home in (2, 3)
    assert 1 < sampled < len(OPTIMIZERS) / 3


def test_tests_of_a_formula_run_in_every_variant_and_every_mode(run):
    every_dtype_in = collections.Counter()
    for case in OPTIMIZERS:
        home = max((run[backend]["formula", case] for backend in cells.BACKENDS), key=len)
        modes, dtypes = map(set, zip(*home))
        assert modes == set(MODES) and dtypes == set(DTYPES)
        every_dtype_in.update(mode for mode, dtype in home if dtype == DTYPES[0])
    assert min(every_dtype_in[mode] for mode in MODES) > 5


def test_the_home_of_a_cell_is_a_backend_of_its_mark(run):
    for case in OPTIMIZERS:
        away, home = sorted(len(run[backend]["rows", case]) for backend in ("tensorflow", "torch"))
        assert away == 1 and home >= 2
        assert len(run["jax"]["rows", case]) == 4  # these are skipped with a reason


def test_all_backends_are_homes_and_all_modes_run(run):
    modes = collections.Counter()
    for backend in cells.BACKENDS:
        homes = [case for case in OPTIMIZERS if len(run[backend].get(("formula", case), ())) > 1]
        assert 4 <= len(homes) <= 16
        for case in OPTIMIZERS:
            if case not in homes:
                modes.update(run[backend]["formula", case])
    assert set(modes) == set(itertools.product(MODES, DTYPES))
    assert min(modes.values()) > 5


def test_a_single_installed_backend_is_home_of_every_cell(monkeypatch):
    monkeypatch.setattr(cells, "INSTALLED", ("jax",))
    left_out = cells.left_out(suite(), "jax", REPRESENTATIVES)
    covered = {cells.cell_of(item) for item in suite() if str(item) not in set(map(str, left_out))}
    of = collections.Counter(cell.invariant for cell in covered)
    assert set(of) == {"contract: formula", "contract: engine", "contract: rows"}
    assert of["contract: formula"] == of["contract: rows"] == len(OPTIMIZERS)  # "rows" is skipped
    assert {c.optimizer for c in covered if c.invariant == "contract: engine"} >= REPRESENTATIVES


def run_without_case(monkeypatch, numbers, *marks):
    """Return {number: [(backend, mode)]} for a test about no optimizer."""
    monkeypatch.setattr(cells, "INSTALLED", cells.BACKENDS)
    covered = collections.defaultdict(list)
    for backend in cells.BACKENDS:
        items = [
            Item("averages", number, mode, marks)
            for number in numbers
            for mode in MODES_OF[backend]
        ]
        for item in items:
            item.callspec.params |= {"case": None, "number": item.callspec.params["case"].name}
        left_out = set(map(str, cells.left_out(items, backend, REPRESENTATIVES)))
        for item in items:
            if str(item) not in left_out:
                params = item.callspec.params
                covered[params["number"]].append((backend, params["mode"]))
    assert sorted(covered) == list(numbers)
    return covered


MODES_OF = {"tensorflow": (*MODES, "xla"), "jax": MODES, "torch": MODES}


def test_a_test_about_no_optimizer_runs_in_all_modes_on_one_backend(monkeypatch):
    homes = collections.Counter()
    for found in run_without_case(monkeypatch, range(30)).values():
        ((home, *others), ways) = zip(*found)
        assert set(others) == {home} and ways == MODES_OF[home]
        homes[home] += 1
    assert len(homes) == 3 and min(homes.values()) >= 4


def test_eager_and_compiled_steps_are_spread_apart(monkeypatch):
    homes = collections.defaultdict(collections.Counter)
    for found in run_without_case(monkeypatch, range(60), pytest.mark.spread.mark).values():
        assert sorted({mode for _, mode in found} & set(MODES)) == sorted(MODES)
        for mode in MODES:
            ((home, _),) = [pair for pair in found if pair[1] == mode]
            homes[mode][home] += 1
    assert set(homes["eager"]) == {"tensorflow", "torch"}
    assert set(homes["compiled"]) == set(cells.BACKENDS)
    assert min(min(places.values()) for places in homes.values()) > 10


def test_spread_may_name_the_home(monkeypatch):
    covered = run_without_case(monkeypatch, range(9), pytest.mark.spread("jax").mark)
    assert all(found == [("jax", mode) for mode in MODES] for found in covered.values())


def test_a_test_about_no_optimizer_has_few_parameters_on_each_backend(monkeypatch):
    backends = [b for b, _ in itertools.chain(*run_without_case(monkeypatch, range(1)).values())]
    assert all(2 <= backends.count(b) <= len(MODES_OF[b]) for b in cells.BACKENDS)


@pytest.mark.parametrize("mark", [pytest.mark.everywhere, pytest.mark.xdist_group("shared")])
def test_a_test_marked_everywhere_or_sharing_a_fixture_runs_on_every_backend(mark, monkeypatch):
    covered = run_without_case(monkeypatch, range(30), mark.mark)
    everything = [(backend, mode) for backend, modes in MODES_OF.items() for mode in modes]
    assert all(found == everything for found in covered.values())


def test_cell_and_mode_of_an_item():
    item = Item("contract", "Adam", "xla", [pytest.mark.cell(invariant="use_ema").mark])
    assert cells.cell_of(item) == ("contract: use ema", "Adam")
    assert cells.mode_of(item) == "compiled"
    assert cells.mode_of(Item("contract", "Adam", "plain", [])) == "eager"
    assert cells.mode_of(Item("contract", "Adam", None, [])) == ""
    about = pytest.mark.cell(optimizer="LARS", invariant="direct").mark
    assert cells.cell_of(Item("same", "Adam", "eager", [about])) == (
        "contract: same direct",
        "LARS",
    )


# The matrix


REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="invariant" value="contract: one"/>
<property name="optimizer" value="Adam"/><property name="mode" value="eager"/></properties>
</testcase>
<testcase name="b"><properties><property name="invariant" value="contract: one"/>
<property name="optimizer" value="Adam"/><property name="mode" value="compiled"/></properties>
{outcome}</testcase>
<testcase name="c"><properties><property name="invariant" value="state: two"/>
<property name="optimizer" value="LARS"/><property name="mode" value=""/></properties>
<skipped message="no such thing here"/></testcase>
<testcase name="about no optimizer"/>
</testsuite></testsuites>"""


@pytest.fixture
def matrix(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("matrix", ROOT / ".ci" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "OUT", tmp_path / "matrix.md")
    return module


def cells_of_row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
    return [part.strip() for part in line.strip("|").split("|")[1:]]


def test_matrix(matrix, tmp_path, capsys):
    """The summary adds up reports of two backends, and says what failed and what is missing."""
    for backend, outcome in (("jax", ""), ("torch", '<failure message="wrong"/>')):
        report = tmp_path / f"{backend}-1-of-1.xml"
        report.write_text(REPORT.format(outcome=outcome), encoding="utf-8")
    assert matrix.summary(sorted(tmp_path.glob("*.xml"))) == 1
    text = capsys.readouterr().out
    assert cells_of_row(text, "invariant")[:3] == ["torch eager", "torch compiled", "torch"]
    assert cells_of_row(text, "contract: one") == ["1", "0/1", ".", "1", "1", "."]
    assert cells_of_row(text, "state: two") == [".", ".", "- (a)", ".", ".", "- (a)"]
    assert "(a) no such thing here" in text
    assert cells_of_row(text, "Adam") == ["1", "0/1", ".", "1", "1", "."]
    assert "2 optimizers x 2 invariants" in text
    assert "1 of them passed on some backend, 1 failed on some" in text
    whole = (tmp_path / "matrix.md").read_text(encoding="utf-8")
    torch = whole.split("## torch")[1].split("```")[1].splitlines()
    assert torch[2:] == ["Adam +F. ...", "LARS ... ..-"]


def test_a_report_without_cells_has_no_summary(matrix, tmp_path):
    report = tmp_path / "jax-1-of-1.xml"
    report.write_text("<testsuites/>", encoding="utf-8")
    assert matrix.summary([report]) is None


TRAINED = """
from tests.workers import cross_backend_worker, state_worker
from tests.helpers import distribution_runs
print({case.name for case in cross_backend_worker.TRAINED})
print(set(state_worker.TRAVELLERS))
print({distribution_runs.optimizer_of(run) for _, _, run in distribution_runs.every_run()})
"""


@pytest.mark.slow
def test_where_one_optimizer_is_chosen_no_other_is_trained():
    chosen = {"TESTS_EXHAUSTIVE": "1", "TESTS_OPTIMIZER": "Lookahead"}
    assert output_of("-c", TRAINED, **chosen).splitlines() == ["{'Lookahead'}"] * 3
