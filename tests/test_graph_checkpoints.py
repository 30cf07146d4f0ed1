"""TensorFlow's Saver restores and writes checkpoints of TensorFlow 1 with our optimizers."""

import json
import os

import keras
import numpy as np
import pytest

from keras_tfopt import legacy
from tests import test_checkpoints as recorded
from tests.paths import SIGNATURES

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are TensorFlow's", allow_module_level=True)


from integration.tf1 import names, restore

NAMES = json.loads((SIGNATURES / "tf1_checkpoint_names.json").read_text())
MAKERS = names.makers(legacy, legacy)
MODULE = "keras_tfopt.legacy"

pytestmark = [
    pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's"),
    pytest.mark.filterwarnings("ignore:Weight decay beside"),
]


def test_every_recorded_class_is_made():
    assert set(MAKERS) == set(NAMES["names"])


@pytest.mark.parametrize("name", MAKERS)
def test_variables_of_a_graph_equal_those_of_tensorflow_1(name):
    """They have the same names, shapes, data types and meanings."""
    assert names.described(MAKERS[name]) == NAMES["names"][name]


def run(kind, prefix, folder, saved=None):
    """Run the recorded program with our optimizers; return its results."""
    batches = recorded.RECORDED / kind / "continuation.npz"
    manifest = recorded.RECORDED / kind / "manifest.json"
    restore.main(str(manifest), prefix, str(batches), str(folder / "done.npz"), MODULE, saved)
    return np.load(folder / "done.npz")


@recorded.every_case
def test_training_continues_in_a_graph(kind, prefix, tmp_path):
    """The steps after restoring equal those of TensorFlow 1.15.5."""
    path = str(recorded.RECORDED / kind / prefix)
    swapping = prefix.startswith("swapping")
    if swapping:
        path += "+swapping"
    saved = str(tmp_path / "again")
    done = run(kind, path, tmp_path, saved)
    arrays = np.load(recorded.RECORDED / kind / "continuation.npz")
    tolerance = recorded.manifest(kind)["tolerance"]
    compared = 0
    for name in arrays:
        what, step, *rest = name.split("/")
        if what in ("var", "loss") and int(step) >= 5:
            recorded.assert_close(done[name], arrays[name], tolerance["var"], name)
            compared += 1
    assert compared > 20
    # The restored checkpoint is saved again with the same names and bits.
    given = recorded.contents(str(recorded.RECORDED / kind / prefix))
    again = recorded.contents(saved)
    assert set(again) == set(given)
    for name, value in given.items():
        np.testing.assert_array_equal(again[name], value, name)


@pytest.mark.slow
@recorded.every_kind
def test_tensorflow_1_continues_from_a_graph_of_today(kind, tmp_path):
    python = recorded.tensorflow_1()
    saved = str(tmp_path / "saved")
    run(kind, recorded.prefix_of(kind), tmp_path, saved)
    done = recorded.restored_by(python, kind, saved, tmp_path / "theirs.npz")
    assert done is not None
    recorded.assert_restored(kind, saved, done)
    assert os.path.exists(f"{saved}.index")
