"""Every recording of TensorFlow 1 and RETURNN can be replayed in a graph and a session."""

import pytest

from integration import originals, recordings, replay, through_graph
from tests.graphs import one_kind_of_each
from tests.paths import GOLDEN

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

CASES = {
    case.name: case
    for folder in ("tf1", "returnn")
    for case in recordings.select(GOLDEN / folder, deviation=originals.deviation).cases
}
KINDS = {name: through_graph.kinds(case) for name, case in CASES.items()}


@one_kind_of_each(KINDS)
def test_a_graph_makes_the_recorded_steps(name, kind):
    """A recording names the kinds of variables: resource variables, reference variables or both."""
    outcome = replay.replay(CASES[name], {kind: None}, through="graph")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def test_both_kinds_of_variables_are_replayed():
    kinds = sum(KINDS.values(), [])
    assert len(CASES) > 200
    assert min(kinds.count("resource"), kinds.count("reference")) > 150
