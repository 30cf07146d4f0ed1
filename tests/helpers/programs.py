"""Running Python programs in processes of their own."""

import os
import subprocess
import sys

from tests.helpers.paths import ROOT
from tests.helpers.stepping import BACKEND

AS_USERS = {"JAX_ENABLE_X64": "0"}  # the test run itself has x64 on


def search_path(*more, hidden=("unused",)):
    """Return a `PYTHONPATH` with the project, on which packages of tests/hidden look absent."""
    folders = [ROOT / "tests" / "hidden" / one for one in hidden]
    return os.pathsep.join(filter(None, map(str, [*folders, ROOT, *more])))


def run(*arguments, cwd=ROOT, timeout=600, hidden=("unused",), **environment):
    """Run Python with these arguments, on the backend of this run unless KERAS_BACKEND is given."""
    path = search_path(hidden=hidden)
    environment = {"KERAS_BACKEND": BACKEND, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output_of(*arguments, **options):
    """Run Python as `run` does, and return what it prints. Fail if the program does."""
    done = run(*arguments, **options)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# ---- Parts of programs that train on one device, then on two ------------------------------------

TWO_DEVICES = """
from tests.helpers import virtual_devices
virtual_devices.use(2)
import contextlib, keras, keras_tfopt, numpy as np
scope = contextlib.nullcontext
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
"""
"""Begins such a program. On TensorFlow, `scope()` is that of a strategy over both devices."""

SPREAD = """
if keras.backend.backend() == "jax":
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
"""
"""What comes between the trainings: on JAX, the second one is data parallel."""
