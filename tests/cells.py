"""Which tests run on which backend. An exhaustive run leaves nothing out.

A cell of the matrix is a test and an optimizer, with all variants, modes and dtypes of the test.
Each cell has a backend that is its home. This table is `TABLE` below:

| tests of a cell                                   | at home                   | elsewhere |
|---------------------------------------------------|---------------------------|-----------|
| marked `exhaustive`                               | none                      | none      |
| marked `spread`                                   | all                       | none      |
| about no optimizer                                | all                       | all       |
| about a representative: the first Case of a kind  | all                       | one       |
| marked `formula`                                  | each variant, each mode   | one       |
| every sixth of the others                         | one                       | none      |
| the rest                                          | none                      | none      |

The first line that fits decides. Why: the engine knows few kinds of rules (REPRESENTATIVES has one
optimizer of each), so what does not depend on a formula is tested with these. A formula is Python
branches and operations of a backend, so every branch and every backend takes part. `spread` is for
slow tests that are much the same on all backends.

Home, mode and every sixth cell are chosen by a hash of names. So they stay the same from run to
run, and when tests or optimizers are added.
"""

import collections
import importlib.util
import os
import re
import zlib
from typing import NamedTuple

import pytest

BACKENDS = ("tensorflow", "jax", "torch")
WAYS = ("mode", "way", "runner_of")  # the parameter that says how a test makes steps
EAGER = ("eager", "plain")  # what tests call steps that are made operation by operation
EXHAUSTIVE = "TESTS_EXHAUSTIVE" in os.environ  # set by `--exhaustive` before tests are read
INSTALLED = tuple(name for name in BACKENDS if importlib.util.find_spec(name))


class Cell(NamedTuple):
    invariant: str
    optimizer: str


def spread(*values):
    """Parameters of a test that is to run on one backend with them."""
    return pytest.param(*values, marks=pytest.mark.spread)


def exhaustive(*values):
    """Parameters of a test that is to run with them in exhaustive runs only."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def pick(options, *words):
    """Return one of the options, always the same one for the same words."""
    return options[zlib.crc32("/".join(words).encode()) % len(options)]


def _params(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def case_of(item):
    """The Case that a test takes, or None."""
    case = _params(item).get("case")
    return case if hasattr(case, "name") else None


def cell_of(item):
    """The cell that a test belongs to, or None. The mark `cell` says what its name does not."""
    said = {}
    for mark in item.iter_markers("cell"):
        said = {**mark.kwargs, **said}
    optimizer = said.get("optimizer") or getattr(case_of(item), "name", None)
    if optimizer is None:
        return None
    file, test = (name.removeprefix("test_") for name in (item.path.stem, item.originalname))
    words = [test if test != file else "", said.get("invariant", "")]
    return Cell(f"{file}: {' '.join(filter(None, words))}".replace("_", " "), optimizer)


def mode_of(item):
    """Return "eager" or "compiled", as a test makes steps; "" where it does not say."""
    way = way_of(item)
    return "eager" if way in EAGER else "compiled" if way else ""


def way_of(item):
    """Return the parameter of a test that says how it makes steps; "" where none does."""
    words = [_params(item).get(name) for name in WAYS]
    return next(filter(None, words), "")


def variant_of(item):
    """All parameters of a test but the way to make steps."""
    return tuple((n, repr(v)) for n, v in sorted(_params(item).items()) if n not in WAYS)


def backends_of(item):
    """The backends on which a test says something, of those that are installed."""
    mark = item.get_closest_marker("backends")
    return tuple(name for name in INSTALLED if mark is None or name in mark.args)


def everything(tests, words, backend):
    return tests


def nothing(tests, words, backend):
    return []


def one(tests, words, backend):
    return [one_of(tests, *words, backend)]


def each_variant_and_each_mode(tests, words, backend):
    """Each variant in some mode, and each mode with some variant."""
    return one_of_each(tests, variant_of, *words) + one_of_each(tests, way_of, *words)


# {line of the table: (what runs at home, what runs elsewhere)}
TABLE = {
    "exhaustive": (nothing, nothing),
    "spread": (everything, nothing),
    "about no optimizer": (everything, everything),
    "representative": (everything, one),
    "formula": (each_variant_and_each_mode, one),
    "sixth": (one, nothing),
    "rest": (nothing, nothing),
}


def line_of(item, representatives):
    """The line of the table that decides about a test."""
    if item.get_closest_marker("exhaustive"):
        return "exhaustive"
    if item.get_closest_marker("spread"):
        return "spread"
    if not case_of(item):
        return "about no optimizer"
    cell = cell_of(item)
    if cell.optimizer in representatives:
        return "representative"
    if item.get_closest_marker("formula"):
        return "formula"
    return "sixth" if pick((True, *[False] * 5), "sample", *cell) else "rest"


def left_out(items, backend, representatives):
    """The tests, of those given, that a run on this backend leaves to others."""
    groups, unwanted = collections.defaultdict(list), set()
    for item in items:
        line = line_of(item, representatives)
        is_alone = line in ("exhaustive", "spread", "about no optimizer")
        words = (_name_in_all_ways(item),) if is_alone else cell_of(item)
        groups[line, words, backends_of(item)].append(item)
    for (line, words, places), tests in groups.items():
        if line != "exhaustive" and backend not in places:
            continue  # skipped, with a reason
        at_home, elsewhere = TABLE[line]
        keep = at_home if places and backend == pick(places, *words) else elsewhere
        unwanted |= {id(item) for item in tests} - {id(i) for i in keep(tests, words, backend)}
    return [item for item in items if id(item) in unwanted]


def one_of(tests, *words):
    return pick(sorted(tests, key=lambda item: item.name), *words)


def one_of_each(tests, kind_of, *words):
    kinds = collections.defaultdict(list)
    for item in tests:
        kinds[kind_of(item)].append(item)
    # By the name of one of them, or all kinds would have the same mode.
    return [one_of(alike, *words, min(item.name for item in alike)) for alike in kinds.values()]


def _name_in_all_ways(item):
    """The name of a test without the way to make steps: not every backend has every way."""
    return re.sub(rf"(?<=[\[-]){re.escape(str(way_of(item)))}(?=[\]-])", "", item.name, count=1)
