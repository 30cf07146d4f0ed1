"""What does not show in a median: the first step of `fit`, and steps after thousands of others.

    python -m integration.benchmarks.costs first Adam

trains a convolutional net on handwritten digits for one step with an optimizer of keras_tfopt, or
with `keras.Adam` that of Keras, and prints the seconds that this step took. It is run in processes
of its own, by turns: once with empty caches of compiled code, as on a new machine, and then more.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import keras

from integration.benchmarks import contenders
from keras_tfopt import engine


def first_steps(turns: int = 3) -> dict[str, dict[str, float]]:
    """Seconds of the first step of `fit`, ours and Keras's: on a new machine, and afterwards."""
    seconds: dict[str, list[float]] = {"keras_tfopt.Adam": [], "keras.Adam": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 + turns):
            for name, values in seconds.items():
                done = subprocess.run(
                    [sys.executable, "-m", "integration.benchmarks.costs", name],
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{name}"},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                values.append(float(done.stdout.split()[-1]))
    return {
        name: {"new machine": round(v[0], 2), "later": round(statistics.median(v[1:]), 2)}
        for name, v in seconds.items()
    }


def first_step(name: str) -> float:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            *[layer for width in (32, 64, 64, 128) for layer in _block(width)],
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam() if name == "keras.Adam" else contenders.RULES["Adam"][0]()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = time.perf_counter()
    model.fit(images[:64], labels[:64], batch_size=64, verbose=0)
    return time.perf_counter() - before


def _block(width: int) -> list:
    layers = keras.layers
    return [
        layers.Conv2D(width, 3, padding="same"),
        layers.BatchNormalization(),
        layers.Activation("relu"),
    ]


def growth(steps: int = 10_000, part: int = 1_000) -> float:
    """Median time of the last of many steps over that of the first."""
    step = contenders.of_keras(contenders.RULES["Adam"][0], [(64, 64)] * 4 + [(64,)] * 4)
    for _ in range(20):
        step()
    times = []
    for _ in range(steps):
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    return round(statistics.median(times[-part:]) / statistics.median(times[:part]), 3)


if __name__ == "__main__":
    engine.compile_in_background(True)  # as for users
    print(first_step(sys.argv[1]))
