"""Every recording of TensorFlow 1 and RETURNN, replayed in a graph and a session."""

from pathlib import Path

import keras
import pytest

from integration import originals, recordings, replay, through_graph
from tests import cells

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are TensorFlow's", allow_module_level=True)

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    case.name: case
    for folder in ("tf1", "returnn")
    for case in recordings.select(GOLDEN / folder, deviation=originals.deviation).cases
}


def every_recording():
    """On resource variables, on reference variables, or on both, as it was recorded.

    Unless the run is exhaustive, on one of both.
    """
    for name, case in CASES.items():
        kinds = through_graph.kinds(case)
        for kind in kinds:
            marks = [pytest.mark.exhaustive] if kind != cells.pick(kinds, name) else []
            yield pytest.param(name, kind, id=f"{name}-{kind}", marks=marks)


@pytest.mark.parametrize(("name", "kind"), every_recording())
def test_recording_in_a_graph(name, kind):
    outcome = replay.replay(CASES[name], {kind: None}, through="graph")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def test_both_kinds_of_variables_are_replayed():
    kinds = [kind for case in CASES.values() for kind in through_graph.kinds(case)]
    assert len(CASES) > 200
    assert min(kinds.count("resource"), kinds.count("reference")) > 150
