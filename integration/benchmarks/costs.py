"""What does not show in a median: first steps, many steps, many variables.

    python -m integration.benchmarks.costs

trains a convolutional net on handwritten digits for one step with Adam of keras_tfopt and of Keras,
in processes of their own, by turns: once with empty caches of compiled code, as on a new machine,
and then more. Then it makes steps over thousands of variables, ours and those of a peer by turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras

from integration.benchmarks import contenders
from integration.benchmarks.results import markdown, write
from keras_tfopt import engine

SIZES = (1000, 10_000)


def first_steps(turns: int = 3) -> dict[str, dict[str, float]]:
    """Seconds of the first step of `fit`, ours and Keras's: on a new machine, and afterwards."""
    seconds: dict[str, list[float]] = {"keras_tfopt.Adam": [], "keras.Adam": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 + turns):
            for name, values in seconds.items():
                done = subprocess.run(
                    [sys.executable, "-m", "integration.benchmarks.costs", "--first", name],
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


def memory_of_steps(count: int = 1000) -> float:
    """Return by how many MB the memory of the process grows in so many steps."""
    step = contenders.of_keras(contenders.RULES["Adam"][0], [(64, 64)] * 200)
    for _ in range(50):
        step()
    before = _megabytes()
    for _ in range(count):
        step()
    return round(_megabytes() - before, 1)


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def many_variables(count: int, steps: int = 10) -> list[dict]:
    """Measure steps of Adam over so many variables of 16x16, ours and those of the peer."""
    shapes = [(16, 16)] * count
    named = {"keras_tfopt.Adam": contenders.of_keras(contenders.RULES["Adam"][0], shapes)}
    peer, step = contenders.peer("Adam", shapes)
    named[peer] = step
    first, times = {}, {name: [] for name in named}
    for name, step in named.items():
        before = time.perf_counter()
        step()
        first[name] = time.perf_counter() - before
    for _ in range(steps):
        for name, step in named.items():
            before = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - before))
    return [
        {
            "variables": count,
            "optimizer": name,
            "first_step_seconds": round(first[name], 2),
            "milliseconds": round(statistics.median(times[name]), 2),
        }
        for name in named
    ]


def table(found: list[dict]) -> str:
    head = ["variables", "optimizer", "first step, s", "a step, ms"]
    rows = [
        [
            f"{r['variables']:,}",
            r["optimizer"],
            f"{r['first_step_seconds']:.2f}",
            f"{r['milliseconds']:.1f}",
        ]
        for r in found
    ]
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of variables")
    parser.add_argument("--first", help=argparse.SUPPRESS)  # what the processes are given
    options = parser.parse_args()
    if options.first:
        engine.compile_in_background(True)  # as for users
        print(first_step(options.first))
        return
    seconds, last = first_steps(), growth()
    grown = memory_of_steps()
    many = [row for count in options.sizes for row in many_variables(count)]
    head = ["optimizer", "first step on a new machine, s", "first step later, s"]
    cells = [[n, *(f"{value:.2f}" for value in found.values())] for n, found in seconds.items()]
    text = (
        f"{markdown(head, cells)}\n\n{table(many)}\n\n"
        f"The last of 10,000 steps take {last} times as long as the first. 1,000 steps over 200 "
        f"variables add {grown} MB to the memory of the process."
    )
    ours = [row for row in many if row["optimizer"] == "keras_tfopt.Adam"]
    measured = {f"Adam, {r['variables']} variables, ms": r["milliseconds"] for r in ours}
    measured["first step of fit, s"] = seconds["keras_tfopt.Adam"]["new machine"]
    found = {"first_steps": seconds, "last_steps": last, "megabytes": grown, "variables": many}
    write(options.out / f"costs_{contenders.BACKEND}.json", text, found, measured)


if __name__ == "__main__":
    main()
