"""Programs of TensorFlow 1 make the losses that they made on 1.15.5, with nothing changed."""

import itertools

import keras
import numpy as np
import pytest

from tests.cells import exhaustive
from tests.helpers.paths import GOLDEN

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are TensorFlow's", allow_module_level=True)

from integration.tf1 import programs

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

RECORDED = GOLDEN / "tf1_programs"
STEPS = 60
# Sums are in another order there, so that the last bits differ.
LOSSES = {"rtol": 1e-6, "atol": 1e-6}
VARIABLES = {"rtol": 1e-5, "atol": 1e-5}
USUAL = [("convolutional", "reference"), ("skip_gram", "resource"), ("gan", "resource")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pair if pair in USUAL else exhaustive(*pair)
        for pair in itertools.product(programs.PROGRAMS, ("reference", "resource"))
    ],
)
def test_losses_are_those_of_tensorflow_1(name, kind, tmp_path):
    out = tmp_path / "out.npz"
    resources = kind == "resource"
    programs.main(name, str(tmp_path), STEPS, str(out), "keras_tfopt.legacy", resources)
    ours, recorded = np.load(out), np.load(RECORDED / f"{name}.npz")
    assert set(ours) == set(recorded)
    losses = [key for key in recorded if not key.startswith("var/")]
    assert len(losses) >= STEPS
    for key in recorded:
        tolerance = LOSSES if key in losses else VARIABLES
        np.testing.assert_allclose(ours[key], recorded[key], **tolerance, err_msg=key)


def test_the_gan_goes_on_from_the_checkpoint_of_tensorflow_1(tmp_path):
    for file in (RECORDED / "gan").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    out = tmp_path / "out.npz"
    programs.main("gan", str(tmp_path), STEPS, str(out), "keras_tfopt.legacy")
    ours, recorded = np.load(out), np.load(RECORDED / "gan.npz")
    losses = [key for key in ours if not key.startswith("var/")]
    assert len(losses) == 3 * (STEPS - 20)
    for key in losses:
        np.testing.assert_allclose(ours[key], recorded[key], **LOSSES, err_msg=key)
