"""Defects under MirroredStrategy, with two devices in a process of their own."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from integration.stock_defects.findings import ROOT, Outcome, attempt, probe
from integration.stock_defects.scenarios import number, ours, stock

MIRRORED = {
    "7a": {"gradient_accumulation_steps": 2},
    "7b": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
}


@functools.cache
def _mirrored() -> dict[str, tuple]:
    """Weights under MirroredStrategy with 2 devices; what is right is the run on one device.

    In a process of its own, as devices cannot be divided once TensorFlow has been used.
    """
    command = [sys.executable, "-m", "integration.stock_defects", "--mirrored"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process for MirroredStrategy failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        key: (each["one"], 1e-5, Outcome(**each["stock"]), Outcome(**each["ours"]))
        for key, each in found.items()
    }


def run_mirrored() -> None:
    """Print, as JSON, the weights of one device and of two."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")

    def scenario(optimizer: Any) -> float:
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.layers.Input((3,)), layer])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return number(model.trainable_variables[0])

    def in_strategy(make: Callable[[], Any]) -> dict:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return vars(attempt(scenario, make))

    result = {}
    for key, options in MIRRORED.items():
        of_stock = functools.partial(stock.Adam, 0.05, epsilon=1e-8, **options)
        of_ours = functools.partial(ours.Adam, 0.05, **options)
        one = attempt(scenario, of_ours).value
        result[key] = {"one": one, "stock": in_strategy(of_stock), "ours": in_strategy(of_ours)}
    print(json.dumps(result))


@probe(
    "7a",
    "MirroredStrategy fails with gradient_accumulation_steps",
    "weight after 8 micro-steps of Adam(0.05), 2 devices",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def mirrored_accumulation() -> tuple:
    return _mirrored()["7a"]


@probe(
    "7b",
    "MirroredStrategy fails with ema_overwrite_frequency",
    "weight after 8 steps of Adam(0.05), 2 devices",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def mirrored_overwrite() -> tuple:
    return _mirrored()["7b"]
