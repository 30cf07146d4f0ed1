"""Every recording of TensorFlow 1 and RETURNN can be replayed in a graph and a session."""

import collections

import pytest

from integration import originals, recordings, replay, through_graph
from tests.cells import FEW
from tests.helpers.graphs import one_kind_of_each
from tests.helpers.paths import GOLDEN

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

CASES = {
    case.name: case
    for folder in ("tf1", "returnn")
    for case in recordings.select(GOLDEN / folder, deviation=originals.deviation).cases
}
KINDS = {name: through_graph.kinds(case) for name, case in CASES.items()}


KEYS = "gradient_transform phases apply_kwargs resource_variables global_step_passed".split()


def traits(case):
    """Return what code for graphs may distinguish about a recording, as text."""
    objects = [v for v in case.entry["kwargs"].values() if isinstance(v, dict | list)]
    variables = {(v["dtype"], v["gradient"]) for v in case.entry["variables"]}
    others = [case.entry.get(key) for key in KEYS]
    return str([case.optimizer, sorted(variables), objects, bool(case.learning_rates), *others])


def rare():
    """Return names of recordings that resemble two others; those of large matrices are not rare."""
    seen, found = collections.Counter(), set()
    for name, case in CASES.items():
        seen[traits(case)] += 1
        if seen[traits(case)] > FEW and "max_matrix_size" not in case.entry["kwargs"]:
            found.add(name)
    return found


@one_kind_of_each(KINDS, rare())
def test_a_graph_makes_the_recorded_steps(name, kind):
    """A recording names the kinds of variables: resource variables, reference variables or both."""
    outcome = replay.replay(CASES[name], {kind: None}, through="graph")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def test_both_kinds_of_variables_are_replayed():
    kinds = sum(KINDS.values(), [])
    assert len(CASES) > 200
    assert min(kinds.count("resource"), kinds.count("reference")) > 150
