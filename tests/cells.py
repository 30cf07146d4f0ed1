"""Choose which tests run on which backend. An exhaustive run leaves nothing out.

The suite is a matrix with a row for each test and a column for each optimizer. A cell is one test
of one optimizer, with all variants of its arguments, all modes and all dtypes. To save time, a run
on one backend takes only some of the cells. The backend on which a cell runs in full is its home.
This is what runs at home and elsewhere, as `TABLE` below has it:

| tests of a cell                                   | at home                   | elsewhere |
|---------------------------------------------------|---------------------------|-----------|
| marked `exhaustive`                               | none                      | none      |
| marked `spread`                                   | all                       | none      |
| marked `everywhere`                               | all                       | all       |
| about no optimizer, with parameters               | a third, at least two     | the same  |
| about no optimizer                                | all                       | all       |
| marked `formula`                                  | each variant, each mode   | one       |
| about a representative: the first Case of a kind  | all                       | none      |
| every sixth of the others                         | one                       | none      |
| the rest                                          | none                      | none      |

The first line that fits decides. The reasons:

- The engine knows few kinds of rules. REPRESENTATIVES has one optimizer of each kind. With these,
  tests try what does not depend on a formula.
- A formula has branches in Python and operations of a backend. So every branch and every
  backend takes part.
- `spread` marks tests that say nothing about a backend: of names, arguments, files, the source. It
  also marks slow tests whose result is much the same on all backends. `spread("jax")` names the
  home, for tests that take much longer elsewhere.
- A test about no optimizer may have many values of its parameters. Each backend takes another
  third of them; fewer backends, named by the mark `backends`, take more each. It takes all if tests
  share what a fixture has computed for all (mark `xdist_group`). `everywhere` marks others of which
  it takes all, such as those of recordings.

A hash of names chooses the home, the mode and every sixth cell. So these stay the same from run to
run, also when tests or optimizers are added. Eager steps have their home elsewhere than on JAX if
they can: JAX compiles each of their operations for each shape.
"""

import collections
import importlib.util
import os
import re
import zlib
from typing import NamedTuple

import pytest

BACKENDS = ("tensorflow", "jax", "torch")
WAYS = ("mode", "way", "runner_of")  # names of the parameter that says how a test makes steps
EAGER = ("eager", "plain")  # values of it for steps that are made operation by operation
FEW = 2  # tests, of which none is left out
# conftest.py sets both variables before tests are imported.
EXHAUSTIVE = "TESTS_EXHAUSTIVE" in os.environ
CHOSEN = os.environ.get("TESTS_OPTIMIZER")  # the only optimizer whose tests run, or None
INSTALLED = tuple(name for name in BACKENDS if importlib.util.find_spec(name))


class Cell(NamedTuple):
    invariant: str
    optimizer: str


def spread(*values):
    """Return parameters with which a test runs on one backend only."""
    return pytest.param(*values, marks=pytest.mark.spread)


def exhaustive(*values):
    """Return parameters with which a test runs in exhaustive runs only."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def is_wanted(optimizer):
    """Return whether tests about an optimizer run, so that its trainings are worth their time."""
    return CHOSEN in (None, optimizer)


def pick(options, *words):
    """Return one of the options, always the same one for the same words."""
    return options[zlib.crc32("/".join(words).encode()) % len(options)]


def is_every_sixth(*words):
    """Return True for every sixth of all words, always for the same ones."""
    return pick((True, *[False] * 5), "sample", *words)


def _params(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def case_of(item):
    """Return the Case that is a parameter of a test, or None."""
    case = _params(item).get("case")
    return case if hasattr(case, "name") else None


def cell_of(item):
    """Return the cell of a test, or None. The mark `cell` may set what name and Case do not say."""
    marked = {}
    for mark in item.iter_markers("cell"):
        marked = {**mark.kwargs, **marked}
    optimizer = marked.get("optimizer") or getattr(case_of(item), "name", None)
    if optimizer is None:
        return None
    file, test = (name.removeprefix("test_") for name in (item.path.stem, item.originalname))
    words = [test if test != file else "", marked.get("invariant", "")]
    return Cell(f"{file}: {' '.join(filter(None, words))}".replace("_", " "), optimizer)


def subject_of(item):
    """Return the name of the optimizer that a test is about, or of a class that it describes."""
    if cell := cell_of(item):
        return cell.optimizer
    params = _params(item)
    described = params.get("cls", getattr(params.get("entry"), "item", None))
    return getattr(described, "__name__", None)


def mode_of(item):
    """Return "eager" or "compiled", or "" for a test without a parameter of `WAYS`."""
    way = way_of(item)
    return "eager" if way in EAGER else "compiled" if way else ""


def way_of(item):
    """Return the value of the parameter of `WAYS`, or "" for a test without one."""
    words = [_params(item).get(name) for name in WAYS]
    return next(filter(None, words), "")


def variant_of(item):
    """Return all parameters of a test except the one that says how it makes steps."""
    return tuple((n, repr(v)) for n, v in sorted(_params(item).items()) if n not in WAYS)


def backends_of(item):
    """Return the installed backends for which a test is meant."""
    mark = item.get_closest_marker("backends")
    return tuple(name for name in INSTALLED if mark is None or name in mark.args)


def everything(tests, words, backend):
    return tests


def nothing(tests, words, backend):
    return []


def one(tests, words, backend):
    """Return one test, whose mode is the same on all backends."""
    mode = pick(sorted({mode_of(test) for test in tests}), "mode", *words)
    return [one_of([test for test in tests if mode_of(test) == mode], *words)]


def another_one(tests, words, backend):
    """Return one test, which differs between backends."""
    return [one_of(tests, *words, backend)]


def a_third(tests, words, backend):
    """Return the tests at home on the backend, of three backends a third; but no fewer than FEW."""
    own = [test for test in tests if pick(backends_of(test), _name_in_all_ways(test)) == backend]
    others = sorted((test for test in tests if test not in own), key=lambda test: test.name)
    return own + others[: max(0, FEW - len(own))]


def each_variant_and_each_mode(tests, words, backend):
    """Return tests so that each variant runs in some mode, and each mode with some variant."""
    chosen = one_of_each(tests, variant_of, *words)
    met = {way_of(test) for test in chosen}
    missing = [test for test in tests if way_of(test) not in met]
    return chosen + one_of_each(missing, way_of, *words)


# {line of the table: (what runs at home, what runs elsewhere)}
TABLE = {
    "exhaustive": (nothing, nothing),
    "spread": (everything, nothing),
    "everywhere": (everything, everything),
    "parameters": (a_third, a_third),
    "about no optimizer": (everything, everything),
    "formula": (each_variant_and_each_mode, another_one),
    "representative": (everything, nothing),
    "sixth": (one, nothing),
    "rest": (nothing, nothing),
}


def line_of(item, representatives):
    """Return the line of the table that decides about a test."""
    if item.get_closest_marker("exhaustive"):
        return "exhaustive"
    if item.get_closest_marker("spread"):
        return "spread"
    if item.get_closest_marker("everywhere"):
        return "everywhere"
    if not case_of(item):
        is_sampled = variant_of(item) and not item.get_closest_marker("xdist_group")
        return "parameters" if is_sampled else "about no optimizer"
    if item.get_closest_marker("formula"):
        return "formula"
    cell = cell_of(item)
    if cell.optimizer in representatives:
        return "representative"
    return "sixth" if is_every_sixth(*cell) else "rest"


def left_out(items, backend, representatives):
    """Return the tests that a run on this backend leaves to other backends."""
    groups, unwanted = collections.defaultdict(list), set()
    for item in items:
        line = line_of(item, representatives)
        groups[line, _words_of(item, line), backends_of(item)].append(item)
    for (line, words, places), tests in groups.items():
        if line != "exhaustive" and backend not in places:
            continue  # skipped, with a reason
        at_home, elsewhere = TABLE[line]
        keep = at_home(tests, words, backend)
        if keep and backend != _home(keep, places, words):
            keep = elsewhere(tests, words, backend)
        unwanted |= {id(item) for item in tests} - {id(item) for item in keep}
    return [item for item in items if id(item) in unwanted]


def _home(tests, places, words):
    """Return the backend that the mark `spread` names, or one of those where the tests can run."""
    marks = tests[0].iter_markers("spread")
    named = [name for mark in marks for name in mark.args if name in places]
    if named or not places:
        return named[0] if named else None
    if all(mode_of(test) == "eager" for test in tests):
        places = [name for name in places if name != "jax"] or places
    return pick(places, *words)


def _words_of(item, line):
    """Return words for tests that are chosen from together."""
    if line == "parameters":
        return item.path.stem, item.originalname
    if line in ("exhaustive", "everywhere", "about no optimizer"):
        return (_name_in_all_ways(item),)
    if line == "spread":
        return _name_in_all_ways(item), mode_of(item)
    return (*cell_of(item), mode_of(item)) if line == "representative" else cell_of(item)


def one_of(tests, *words):
    return pick(sorted(tests, key=lambda item: item.name), *words)


def one_of_each(tests, kind_of, *words):
    kinds = collections.defaultdict(list)
    for item in tests:
        kinds[kind_of(item)].append(item)
    # The name of a test is among the words, so that kinds get different modes.
    return [one_of(alike, *words, min(item.name for item in alike)) for alike in kinds.values()]


def _name_in_all_ways(item):
    """Return the name of a test without how it makes steps, which differs between backends."""
    return re.sub(rf"(?<=[\[-]){re.escape(str(way_of(item)))}(?=[\]-])", "", item.name, count=1)
