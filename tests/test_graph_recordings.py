"""Every recording of TensorFlow 1 and RETURNN, replayed in a graph and a session."""

from pathlib import Path

import keras
import pytest

from integration import originals, recordings, replay, stepping, through_graph

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are TensorFlow's", allow_module_level=True)

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    case.name: case
    for folder in ("tf1", "returnn")
    for case in recordings.select(GOLDEN / folder, deviation=originals.deviation).cases
}


@pytest.mark.parametrize("name", CASES)
def test_recording_in_a_graph(name):
    """On resource variables, on reference variables, or on both, as it was recorded."""
    outcome = replay.replay(CASES[name], stepping.MODES[0], through="graph")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def test_both_kinds_of_variables_are_replayed():
    kinds = [kind for case in CASES.values() for kind in through_graph.kinds(case)]
    assert len(CASES) > 200
    assert min(kinds.count("resource"), kinds.count("reference")) > 150
