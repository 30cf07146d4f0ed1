"""Steps of `fit` with a table that is divided over four virtual devices of a CPU.

    KERAS_BACKEND=jax python -m integration.benchmarks.tables

Tables of 10^5 and 10^7 rows of 64 numbers, Adagrad, 8,192 uniform ids in a batch: the time of a
step should hardly depend on the rows. The large table takes 5 GB with its slot, and the process at
its peak twice as much. It prints medians, and bytes on the first device.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks.embedding import Intervals

DEVICES, IDS, LENGTH = 4, 8192, 8
ROWS = (10**5, 10**7)
SKIPPED = 4


def measure(rows: int, columns: int, steps: int, optimizer: str) -> dict:
    """Milliseconds of a step, and gigabytes of table and slots in all and on the first device."""
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras_tfopt.layers.Embedding(rows, columns, shard="rows"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras_tfopt.get(optimizer, learning_rate=0.01), "mse")
    rng, timer, batch = np.random.default_rng(0), Intervals(), IDS // LENGTH
    x = rng.integers(0, rows, (batch * steps, LENGTH), dtype="int32")
    y = rng.standard_normal((len(x), 1), dtype="float32")
    model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, callbacks=[timer])
    values = [v.value for v in [*model.trainable_variables, *model.optimizer.variables]]
    return {
        "rows": rows,
        "milliseconds": statistics.median(timer.milliseconds()[SKIPPED:]),
        "fastest": min(timer.milliseconds()[SKIPPED:]),
        "gigabytes": sum(v.nbytes for v in values) / 1e9,
        "here": sum(v.addressable_shards[0].data.nbytes for v in values) / 1e9,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", default="adagrad")
    chosen = parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error("needs KERAS_BACKEND=jax")
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    if flag not in os.environ.get("XLA_FLAGS", ""):  # it must be there before JAX starts
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        command = [sys.executable, "-m", "integration.benchmarks.tables", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}).returncode
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    for rows in chosen.rows:
        found = measure(rows, chosen.columns, chosen.steps, chosen.optimizer)
        print(
            f"{found['rows']:,} x {chosen.columns}, {chosen.optimizer}: step "
            f"{found['milliseconds']:.1f} ms (fastest {found['fastest']:.1f}), table and slots "
            f"{found['gigabytes']:.2f} GB, {found['here']:.2f} GB of them on a device",
            flush=True,
        )
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
