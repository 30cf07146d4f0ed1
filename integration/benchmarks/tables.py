"""Steps of `fit` with tables that are divided over four devices or workers of one machine.

    KERAS_BACKEND=jax python -m integration.benchmarks.tables
    KERAS_BACKEND=torch python -m integration.benchmarks.tables --optimizers ftrl --rows 10000000

JAX has four virtual devices in one process, PyTorch four processes on gloo. The time of a step
should grow with the ids in a batch and hardly with the rows, and steps should need little memory
beyond table and slots. LazyAdam keeps two slots: 7.7 GB for the largest table. While the table is
drawn, JAX needs another 2.6 GB.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks.embedding import Intervals
from integration.benchmarks.results import markdown
from keras_tfopt import distributed
from keras_tfopt.distributed.launch import launch

BACKEND = keras.backend.backend()
DEVICES, LENGTH, COLUMNS = 4, 8, 64
ROWS, IDS = (10**5, 10**6, 10**7), (1024, 8192, 65536)
OPTIMIZERS = ("lazy_adam", "adagrad", "ftrl")
WARM, SKIPPED = 5, 2  # steps before others are measured, and of each `fit`
FLAG = f"--xla_force_host_platform_device_count={DEVICES}"


def resident(name: str) -> int:
    """Return VmRSS, the memory that this process uses, or VmHWM, the most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> None:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def measure(
    rows: int, columns: int, counts: tuple[int, ...], steps: int, optimizer: str
) -> Iterator[dict]:
    """Yield for each count of ids the milliseconds of a step, and gigabytes of this process.

    "here" is of table and slots on the first device, or of this worker; "whole" on all devices of
    this process; "peak" is by how much the process has grown since it had no model.
    """
    before = resident("VmRSS")
    workers = distributed.current()
    made = keras_tfopt.get(optimizer, learning_rate=0.01)
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras_tfopt.layers.Embedding(rows, columns, shard="rows"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(distributed.ShardedState(made) if BACKEND == "torch" else made, "mse")
    rng = np.random.default_rng(workers.rank)
    for ids in counts:
        batch, timer = ids // LENGTH // workers.size, Intervals()
        x = rng.integers(0, rows, (batch * (WARM + steps), LENGTH), dtype="int32")
        y, first = rng.standard_normal((len(x), 1), dtype="float32"), batch * WARM
        options = {"batch_size": batch, "verbose": 0, "shuffle": False}
        model.fit(x[:first], y[:first], **options)
        forget_peak()
        model.fit(x[first:], y[first:], callbacks=[timer], **options)
        peak = resident("VmHWM") - before
        values = [v.value for v in [*model.trainable_variables, *model.optimizer.variables]]
        whole = here = sum(v.nbytes for v in values if str(v.device) != "meta")
        if BACKEND == "jax":
            here = sum(v.addressable_shards[0].data.nbytes for v in values)
        times = timer.milliseconds()[SKIPPED:]
        yield {
            "optimizer": optimizer,
            "rows": rows,
            "ids": ids,
            "milliseconds": statistics.median(times),
            "fastest": min(times),
            "here": here / 1e9,
            "whole": whole / 1e9,
            "peak": peak / 1e9,
        }


def text(found: list[dict]) -> str:
    """Return the table as Markdown."""
    head = ["optimizer", "rows", "ids", "step (fastest), ms", "table and slots on a device, GB"]
    rows = [
        [
            *(r["optimizer"], f"{r['rows']:,}", f"{r['ids']:,}"),
            f"{r['milliseconds']:.1f} ({r['fastest']:.1f})",
            *(f"{r['here']:.3f}", f"{r['whole']:.2f}", f"{r['peak']:.2f}"),
        ]
        for r in found
    ]
    return markdown([*head, "of the process", "peak of the process in steps"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--ids", type=int, nargs="+", default=IDS)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS)
    parser.add_argument("--started", action="store_true", help="given to the processes")
    chosen = parser.parse_args()
    if BACKEND == "tensorflow":
        parser.error("needs KERAS_BACKEND=jax or torch")
    if not chosen.started:  # JAX must know its devices, and PyTorch its workers, from the start
        command = [sys.executable, "-m", "integration.benchmarks.tables", *sys.argv[1:]]
        command.append("--started")
        if BACKEND == "torch":
            return launch(DEVICES, command)
        flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
        return subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}).returncode
    if BACKEND == "torch":
        distributed.connect()
    else:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    found = []
    for optimizer in chosen.optimizers:
        for rows in chosen.rows:
            found += measure(rows, chosen.columns, chosen.ids, chosen.steps, optimizer)
            gc.collect()
    if distributed.current().rank == 0:
        print(text(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
