"""A model that an earlier version saved loads, and trains on as in that version."""

import json
import zipfile

import keras
import numpy as np
import pytest

from integration.saved_files import STEPS, train
from keras_tfopt import engine
from tests.cases import CASES
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import parsed

FOLDER = GOLDEN / "saved_0.1"
SAVED = {path.stem for path in FOLDER.glob("*.keras")}


@pytest.mark.spread
def test_all_saved_models_are_still_there():
    assert len(SAVED) == 40 and SAVED <= {case.name for case in CASES}


@pytest.mark.spread("torch")  # the fastest without compiling
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.name in SAVED])
def test_a_model_of_an_earlier_version_goes_on(case):
    path = FOLDER / f"{case.name}.keras"
    with zipfile.ZipFile(path) as archive:
        writer = json.loads(archive.read("metadata.json"))["keras_version"]
    if parsed(keras.__version__) < parsed(writer):
        pytest.skip(f"layers in files of Keras {writer} have arguments that this Keras lacks")
    model = keras.models.load_model(path)
    assert type(model.optimizer) is case.cls
    start = model.get_weights()
    # The others compile for seconds what makes the same steps.
    model.jit_compile = keras.backend.backend() == "jax"
    with engine.plain():
        train(model, STEPS)
    with np.load(FOLDER / "weights.npz") as arrays:
        expected = [arrays[f"{case.name}/{number}"] for number in range(len(start))]
    assert any(np.any(a != b) for a, b in zip(start, expected, strict=True))
    for found, value in zip(model.get_weights(), expected, strict=True):
        # Backends round gradients differently. Rules that divide by roots of small numbers make
        # these differences larger. Weights are of size 1.
        np.testing.assert_allclose(found, value, atol=2e-5)
