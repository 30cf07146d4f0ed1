"""Training steps with large embedding tables: `python -m integration.benchmarks.embedding`.

Times are of whole steps of `fit`, data and callbacks included: from the end of a batch to the end
of the next. Trainings that are compared take turns, some steps each. The tables of our layer are
there all at once, up to 10^7 rows, for which the machine needs 8 GB of memory to spare.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks.results import accelerator, write

BACKEND = keras.backend.backend()
LENGTH = 8  # ids in a sample
STEPS = 24  # in a turn
SKIPPED = 4  # of these, until a training has settled
TABLES = [(10**5, 64), (10**6, 64), (4 * 10**6, 64), (10**7, 16)]
if accelerator() is not None:  # where memory is fast
    TABLES.append((10**7, 64))
IDS = [1024, 8192, 65536]
USUAL = (10**6, 64)
FEW = 1024

Table = tuple[int, int]

# The layer and the optimizer
CONTENDERS: dict[str, tuple[Callable, Callable]] = {
    "ours": (keras_tfopt.layers.Embedding, lambda: keras_tfopt.LazyAdam(1e-3)),
    "stock": (keras.layers.Embedding, lambda: keras.optimizers.Adam(1e-3)),
    "stock layer": (keras.layers.Embedding, lambda: keras_tfopt.LazyAdam(1e-3)),
}


class Intervals(keras.callbacks.Callback):
    """Milliseconds from the end of each batch to the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])
        self.ends.append(time.perf_counter())

    def milliseconds(self) -> np.ndarray:
        return 1e3 * np.diff(self.ends)


def draw(rng: np.random.Generator, kind: str, rows: int, count: int) -> np.ndarray:
    """Ids; "zipf": few that are frequent and many that are rare, spread over the table."""
    if kind == "uniform":
        return rng.integers(0, rows, count, dtype="int32")
    ranks = np.minimum(rng.zipf(1.2, count) - 1, rows - 1)
    return (ranks * 7919 % rows).astype("int32")


class Training:
    """A model that has little but a table, and its steps."""

    def __init__(self, name: str, table: Table, count: int, kind: str, jit: bool | str = "auto"):
        layer, optimizer = CONTENDERS[name]
        rng = np.random.default_rng(0)
        samples = count // LENGTH * STEPS
        self.x = draw(rng, kind, table[0], samples * LENGTH).reshape(samples, LENGTH)
        self.y = rng.standard_normal((samples, 1), dtype="float32")
        self.batch = count // LENGTH
        # Keras's take seconds, and differ less from each other.
        self.steps = STEPS if name == "ours" else STEPS // 3
        self.model = keras.Sequential(
            [
                keras.layers.Input((LENGTH,), dtype="int32"),
                layer(*table, embeddings_initializer="zeros"),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        self.model.compile(optimizer(), "mse", jit_compile=jit)

    def turn(self) -> list[float]:
        """Makes some steps and gives the time of each but the first."""
        intervals = Intervals()
        samples = self.steps * self.batch
        x, y = self.x[:samples], self.y[:samples]
        self.model.fit(x, y, self.batch, verbose=0, shuffle=False, callbacks=[intervals])
        return intervals.milliseconds()[SKIPPED:].tolist()


def measure(trainings: dict[Any, Training], turns: int) -> dict[Any, list[float]]:
    """Medians of turns, in ms, of trainings that take turns; the first turn compiles."""
    times: dict[Any, list[float]] = {key: [] for key in trainings}
    for number in range(turns + 1):
        for key, training in trainings.items():
            median = statistics.median(training.turn())
            if number:
                times[key].append(median)
    return times


def summary(times: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times), 3),
        "min": round(min(times), 3),
        "max": round(max(times), 3),
    }


def growth_over_tables(jit: bool | str, turns: int) -> list[dict]:
    """Ours for every table, by turns; then Keras's, one after the other, where memory suffices."""
    trainings = {table: Training("ours", table, FEW, "zipf", jit) for table in TABLES}
    ours = measure(trainings, turns)
    del trainings
    gc.collect()
    smallest = statistics.median(ours[TABLES[0]])
    found = []
    for table in TABLES:
        row = {"table": table, "ids": FEW, "kind": "zipf", "ours": summary(ours[table])}
        row["growth"] = round(row["ours"]["median"] / smallest, 2)
        if 12 * 4 * table[0] * table[1] < available_memory():
            stock = Training("stock", table, FEW, "zipf", jit)
            row["stock"] = summary(stock.turn())
            row["stock / ours"] = round(row["stock"]["median"] / row["ours"]["median"], 1)
            del stock
            gc.collect()
        found.append(row)
    return found


def growth_over_ids(jit: bool | str, turns: int) -> list[dict]:
    found = []
    for count in IDS:
        trainings = {"ours": Training("ours", USUAL, count, "uniform", jit)}
        times = measure(trainings, turns)["ours"]
        found.append({"table": USUAL, "ids": count, "kind": "uniform", "ours": summary(times)})
    return found


def stock_layer(jit: bool | str, turns: int) -> dict:
    """Our optimizer with Keras's layer, and Keras's optimizer with the same."""
    both = ("stock layer", "stock")
    times = measure({s: Training(s, USUAL, FEW, "zipf", jit) for s in both}, turns)
    found = {name: summary(times[name]) for name in both}
    single = [a / b for a, b in zip(times["stock"], times["stock layer"])]
    found["stock / stock layer"] = summary(single)
    return found


def available_memory() -> float:
    """Return the bytes that are free, on the GPU if one computes."""
    if accelerator() is not None and BACKEND == "torch":
        import torch

        return torch.cuda.mem_get_info()[0]
    if accelerator() is not None and BACKEND == "jax":
        import jax

        found = jax.devices()[0].memory_stats()
        return found["bytes_limit"] - found["bytes_in_use"]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 8e9
    return next(1024 * float(l.split()[1]) for l in lines if l.startswith("MemAvailable"))


def text(results: dict) -> str:
    """The tables, as Markdown."""
    lines = []
    for mode, found in results.items():
        head = ["table", "ids", "ours, ms (min, max)", "growth", "stock Keras, ms", "stock / ours"]
        lines += [f"{mode}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for row in [*found["tables"], *found["ids"]]:
            ours, stock = row["ours"], row.get("stock")
            cells = [
                f"{row['table'][0]:,} x {row['table'][1]}",
                f"{row['ids']:,} {row['kind']}",
                f"**{ours['median']:.2f}** ({ours['min']:.2f}, {ours['max']:.2f})",
                f"{row['growth']:.2f}" if "growth" in row else "",
                f"{stock['median']:.0f}" if stock else "",
                f"{row['stock / ours']:.0f}" if stock else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        layer = found["stock layer"]
        lines += [
            "",
            "With `keras.layers.Embedding` at 10^6 x 64: "
            f"LazyAdam {layer['stock layer']['median']:.0f} ms, "
            f"Keras's Adam {layer['stock']['median']:.0f} ms, "
            f"ratio {layer['stock / stock layer']['median']:.1f}",
            "",
        ]
    return "\n".join(lines)


def plot(results: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (tables, ids) = pyplot.subplots(1, 2, figsize=(11, 5.5), layout="constrained")
    for number, (mode, found) in enumerate(results.items()):
        look = {"color": f"C{number}", "markerfacecolor": "white" if number else None}
        for key, style, name in (("ours", "o-", "keras_tfopt"), ("stock", "s--", "stock Keras")):
            widths = sorted({table[1] for table in TABLES})
            for width in widths:  # a line for each
                rows = [r for r in found["tables"] if key in r and r["table"][1] == width]
                tables.plot(
                    [row["table"][0] * width for row in rows],
                    [row[key]["median"] for row in rows],
                    style,
                    **look,
                    alpha=1 if width == USUAL[1] else 0.5,
                    label=f"{name}, {mode}, width {width}",
                )
        ids.plot(
            [row["ids"] for row in found["ids"]],
            [row["ours"]["median"] for row in found["ids"]],
            "o-",
            **look,
            label=f"keras_tfopt, {mode}",
        )
    tables.set_xlabel("numbers in the table (rows x width), 1,024 ids a step")
    ids.set_xlabel("ids a step, uniform, table of 10^6 x 64")
    for panel in (tables, ids):
        panel.set(xscale="log", yscale="log", ylabel="ms a step of fit")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    figure.suptitle(f"Training embedding tables, {os.cpu_count()} cores, float32")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    modes: dict[str, bool | str] = {BACKEND: "auto"}
    if BACKEND == "tensorflow":
        modes = {"tensorflow": False, "tensorflow, jit": True}
    results = {
        mode: {
            "tables": growth_over_tables(jit, options.turns),
            "ids": growth_over_ids(jit, options.turns),
            "stock layer": stock_layer(jit, max(1, options.turns // 2)),
        }
        for mode, jit in modes.items()
    }
    stem = options.out / f"embedding_{BACKEND}"
    measured = {
        f"{mode}, {row['table'][0]:,} x {row['table'][1]}, {row['ids']:,} ids, ms": row["ours"][
            "median"
        ]
        for mode, found in results.items()
        for row in [*found["tables"], *found["ids"]]
    }
    write(stem.with_suffix(".json"), text(results), results, measured)
    plot(results, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
