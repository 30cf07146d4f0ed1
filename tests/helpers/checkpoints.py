"""Recorded checkpoints of TensorFlow 1, and functions to read, change and compare them."""

import functools
import json
import os
import shutil
import subprocess

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.legacy.checkpoints.files import write_checkpoint
from tests.cells import INSTALLED
from tests.helpers.paths import GOLDEN, ROOT
from tests.helpers.stepping import to_numpy

RECORDED = GOLDEN / "tf1" / "checkpoints"
KINDS = sorted(p.name for p in RECORDED.iterdir())
every_kind = pytest.mark.parametrize("kind", KINDS)
needs_tensorflow = pytest.mark.skipif(
    "tensorflow" not in INSTALLED, reason="TensorFlow reads the files"
)


@functools.cache
def manifest(kind):
    return json.loads((RECORDED / kind / "manifest.json").read_text())


CASES = [(kind, saved["prefix"]) for kind in KINDS for saved in manifest(kind)["checkpoints"]]


def prefix_of(kind):
    return str(RECORDED / kind / manifest(kind)["checkpoints"][0]["prefix"])


def contents(prefix):
    """Return all arrays of a checkpoint. TensorFlow reads it, without this package."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write(prefix, arrays):
    return write_checkpoint(prefix, [(n, str(a.dtype), lambda a=a: a) for n, a in arrays.items()])


def assert_same(ours, theirs, but=()):
    """Assert that two dictionaries of arrays, or two lists of variables, are equal to the bit."""
    if not isinstance(theirs, dict):
        ours, theirs = dict(enumerate(ours)), dict(enumerate(theirs))
    assert set(ours) == set(theirs)
    for name in theirs.keys() - set(but):
        pair = [
            v if isinstance(v, np.generic | np.ndarray) else to_numpy(v)
            for v in (ours[name], theirs[name])
        ]
        np.testing.assert_array_equal(*pair, err_msg=str(name), strict=True)


def run_program(python, program, arguments, folder):
    """Run a program of `integration/tf1/`, which uses TensorFlow and not this package."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, str(ROOT / "integration" / "tf1" / program), *map(str, arguments)],
        env={**known, "KERAS_BACKEND": "tensorflow"},  # or TensorFlow would import another, too
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@functools.cache
def found_tensorflow_1():
    """Return a Python with TensorFlow 1.15: $TF1_PYTHON, or `python3.7` if it has it, or None."""
    version = "import tensorflow as tf; print(tf.__version__)"
    for python in filter(None, [os.environ.get("TF1_PYTHON"), shutil.which("python3.7")]):
        done = subprocess.run([python, "-c", version], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.split(".")[:2] == ["1", "15"]:
            return python
    return None


def tensorflow_1():
    """Return a Python with TensorFlow 1.15, or skip the test."""
    return found_tensorflow_1() or pytest.skip(
        "no TensorFlow 1.15: set TF1_PYTHON to an interpreter that has it"
    )


# ---- The recorded checkpoint of Adam, and a model for it


ADAM = {"beta_1": 0.77, "beta_2": 0.972, "epsilon": 3e-8}  # as recorded


def recorded(kind="Adam", where="model.ckpt-5"):
    return str(RECORDED / kind / where)


def changed(prefix, folder, rename=lambda name: name, **arrays):
    """Write a checkpoint with other names, added arrays, and without arrays that are None."""
    found = {rename(name): array for name, array in contents(prefix).items()}
    found |= {name.replace("__", "/"): array for name, array in arrays.items()}
    return write(folder / "changed", {n: a for n, a in found.items() if a is not None})


def dense(first="dense", second="dense_1", name="network"):
    """Return the recorded network as a functional model."""
    x = keras.Input((5,))
    h = keras.layers.Dense(4, activation="tanh", name=first)(x)
    return keras.Model(x, keras.layers.Dense(3, name=second)(h), name=name)


def adam():
    return keras_tfopt.Adam(0.02, **ADAM)


def assert_refused(error, match, prefix, model=None, optimizer=None, **options):
    """Load a checkpoint that must be refused. Check that nothing changes, and return the error."""
    model, optimizer = model or dense(), optimizer or adam()
    before, built = [to_numpy(v) for v in [*model.weights, *optimizer.variables]], optimizer.built
    with pytest.raises(error, match=match) as raised:
        legacy.load_checkpoint(prefix, model, optimizer, **options)
    assert optimizer.built == built
    assert_same([*model.weights, *optimizer.variables], before)
    return raised.value


def maybe_built(built):
    model, optimizer = dense(), adam()
    if built:
        optimizer.build(model.trainable_variables)
    return model, optimizer


NAMES = ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def assert_loaded(prefix, model=None, optimizer=None, **options):
    """Load a checkpoint. Assert that the model and Adam have the recorded values."""
    model, optimizer = model or dense(), optimizer or adam()
    report = legacy.load_checkpoint(prefix, model, optimizer, **options)
    assert not report.problems
    theirs = contents(recorded())
    assert_same(model.weights, [theirs[name] for name in NAMES])
    for slot, suffix in (("m", "Adam"), ("v", "Adam_1")):
        slots = [optimizer.slot(variable, slot) for variable in model.weights]
        assert_same(slots, [theirs[f"{name}/{suffix}"] for name in NAMES])
    return report
