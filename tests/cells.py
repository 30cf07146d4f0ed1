"""Which cells of the matrix a run covers. A cell is an invariant, or test, and an optimizer.

A test that takes a `case` is one cell for each Case; its variants, modes, dtypes go with the cell.
Other tests are about the optimizer that a mark `cell(optimizer=..., invariant=...)` names.
Exhaustive runs cover every cell in full. In others, the runs on the several backends together
cover every cell in part, and in full what differs:

- Every cell has a backend that is its home, by a hash of its name.
- The engine tells apart few kinds of rules: of each, the cells of one optimizer (REPRESENTATIVES)
  are covered in full at home, and by one test each, again chosen by a hash, on the other backends.
- A formula is carried out by operations of the backend, so that each optimizer has to meet each
  backend, and by Python branches, so that each of its variants counts. Where a test depends on the
  formula of a rule (mark `formula`), the cells of the other optimizers are covered at home by every
  variant, in one mode each, and by every mode; and by one test each on the other backends.
- All else depends on what the engine does with a rule: of the cells of the other optimizers every
  third one, by a hash, is covered, by one test at home.

Whatever they are about, tests that take long and are much the same on every backend, or whose
parameters differ in what no backend knows of (mark `spread`), run once for all backends, each on
its home, in all ways to make steps that there are. Each parameter has to exist on all backends.

A hash stays the same from run to run, and when other optimizers or tests are added.
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


def pick(options, *words):
    """One of some options, always the same for the same words."""
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
    """Whether a test makes steps operation by operation, or compiled; "" where it does not say."""
    way = way_of(item)
    return "eager" if way in EAGER else "compiled" if way else ""


def way_of(item):
    """How a test makes steps, as one of its parameters says; "" where none does."""
    words = [_params(item).get(name) for name in WAYS]
    return next(filter(None, words), "")


def variant_of(item):
    """All parameters of a test but the way to make steps."""
    return tuple((n, repr(v)) for n, v in sorted(_params(item).items()) if n not in WAYS)


def backends_of(item):
    """The backends on which a test says something, of those that are installed."""
    mark = item.get_closest_marker("backends")
    return tuple(name for name in INSTALLED if mark is None or name in mark.args)


def is_spread(item):
    return item.get_closest_marker("spread") is not None


def is_elsewhere(item, backend):
    """Whether one backend is enough for a test, and it is another one."""
    places = backends_of(item)
    if not is_spread(item) or backend not in places:  # there it is skipped, with a reason
        return False
    return backend != pick(places, _name_in_all_ways(item))


def _name_in_all_ways(item):
    """The name of a test without the way to make steps: not every backend has every way."""
    return re.sub(rf"(?<=[\[-]){re.escape(str(way_of(item)))}(?=[\]-])", "", item.name, count=1)


def left_out(items, backend, representatives):
    """The tests, of those given, that a run on this backend leaves to others."""
    cells, unwanted = collections.defaultdict(list), set()
    for item in items:
        if item.get_closest_marker("exhaustive") or is_elsewhere(item, backend):
            unwanted.add(id(item))
        elif case_of(item) and not is_spread(item):
            cells[cell_of(item)].append(item)
    for cell, members in cells.items():
        places = backends_of(members[0])
        if backend not in places:  # skipped, with a reason
            continue
        is_home = backend == pick(places, *cell)
        represents = cell.optimizer in representatives
        depends_on_formula = members[0].get_closest_marker("formula")
        is_sampled = is_home and pick((True, False, False), "sample", *cell)
        if is_home and represents:
            kept = members
        elif is_home and depends_on_formula:
            kept = one_of_each(members, variant_of, *cell) + one_of_each(members, way_of, *cell)
        elif represents or depends_on_formula or is_sampled:
            kept = [one_of(members, *cell, backend)]
        else:
            kept = []
        unwanted |= {id(item) for item in members} - {id(item) for item in kept}
    return [item for item in items if id(item) in unwanted]


def one_of(tests, *words):
    return pick(sorted(tests, key=lambda item: item.name), *words)


def one_of_each(tests, kind_of, *words):
    kinds = collections.defaultdict(list)
    for item in tests:
        kinds[kind_of(item)].append(item)
    # By the name of one of them, or all kinds would have the same mode.
    return [one_of(alike, *words, min(item.name for item in alike)) for alike in kinds.values()]
