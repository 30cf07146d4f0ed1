"""What an exchange between two workers on this machine adds to a step of `fit`.

    KERAS_BACKEND=jax python -m integration.benchmarks.exchange

Two workers train models of 1M and 10M float32 numbers, by turns with an exchange of all of them in
each step and with none. It prints the medians of the steps, and their difference. On JAX, the
devices of a mesh are measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import keras
import numpy as np

import keras_tfopt
import keras_tfopt.distributed as distributed
from keras_tfopt.distributed.launch import launch

NEVER = 10**9
SIZES = (1_000_000, 10_000_000)


def measure(steps: int, sizes: tuple[int, ...]) -> list[dict]:
    """Milliseconds of a step, with an exchange and without, on this worker."""
    workers = distributed.current()
    found = []
    for size in sizes:
        width = size // 1000
        medians = {}
        for name, period in (("never", NEVER), ("always", 1)):
            model = keras.Sequential(
                [keras.Input((1000,)), keras.layers.Dense(width, use_bias=False)]
            )
            optimizer = distributed.ModelAverage(keras_tfopt.GradientDescent(0.01), period)
            compiled = {"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}
            model.compile(optimizer, "mse", **compiled)
            distributed.train_apart(model)
            timer = Timer()
            rows = 2 * (workers.size if keras.distribution.distribution() else 1)
            x = np.ones((rows * steps, 1000), "float32")
            y = np.ones((rows * steps, width), "float32")
            model.fit(x, y, batch_size=rows, verbose=0, shuffle=False, callbacks=[timer])
            medians[name] = 1000 * statistics.median(timer.seconds[steps // 3 :])
        found.append({"numbers": size, **medians})
    return found


class Timer(keras.callbacks.Callback):
    """Seconds of each step, until its loss is known."""

    def __init__(self):
        super().__init__()
        self.seconds: list[float] = []
        self.start = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        self.seconds.append(time.perf_counter() - self.start)


def report(engine: str, found: list[dict]) -> None:
    for row in found:
        exchange = row["always"] - row["never"]
        print(
            f"{engine}: {row['numbers'] // 10**6}M numbers: step {row['never']:.1f} ms, with an "
            f"exchange {row['always']:.1f} ms, the exchange {exchange:.1f} ms",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sizes", type=json.loads, default=SIZES)
    parser.add_argument("--engine", help="given to the workers")
    chosen = parser.parse_args()
    if chosen.engine:
        workers = distributed.connect(engine=chosen.engine)
        found = measure(chosen.steps, tuple(chosen.sizes))
        if workers.rank == 0:
            report(f"{chosen.engine}, {workers.size} workers", found)
        distributed.disconnect()
        return 0
    backend = keras.backend.backend()
    arguments = ["--steps", str(chosen.steps), "--sizes", json.dumps(list(chosen.sizes))]
    module = [sys.executable, "-m", "integration.benchmarks.exchange", *arguments]
    status = launch(2, [*module, "--engine", backend])
    if backend == "jax" and not status:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
        environment = {**os.environ, "XLA_FLAGS": flags}
        status = subprocess.run([*module, "--engine", "jax_mesh"], env=environment).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
