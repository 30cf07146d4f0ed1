"""What benchmarks share: the machine, tables as Markdown, and files to compare."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import keras

import keras_tfopt

BACKEND = keras.backend.backend()


def machine() -> dict[str, Any]:
    """Return where and with which versions something was measured."""
    return {
        "backend": BACKEND,
        BACKEND: __import__(BACKEND).__version__,
        "keras": keras.__version__,
        "keras_tfopt": keras_tfopt.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": processor(),
        **({"accelerator": accelerator()} if accelerator() else {}),
    }


@functools.cache
def accelerator() -> str | None:
    """Return the name of the GPU or TPU that computes; None if the processor does."""
    if BACKEND == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if BACKEND == "jax":
        import jax

        return None if jax.default_backend() == "cpu" else jax.devices()[0].device_kind
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(devices[0])["device_name"] if devices else None


def wait() -> None:
    """Wait until a GPU has done what PyTorch has told it to, which returns earlier."""
    if BACKEND == "torch" and accelerator() is not None:
        import torch

        torch.cuda.synchronize()


def processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def ratio(times: dict[str, list[float]], ours: str, other: str) -> dict[str, float]:
    """Return the ratio of two medians, and its spread over single rounds."""
    single = [a / b for a, b in zip(times[ours], times[other])]
    medians = statistics.median(times[ours]) / statistics.median(times[other])
    found = {"min": min(single), "median": medians, "max": max(single)}
    return {name: round(value, 2) for name, value in found.items()}


def shown(found: dict[str, float]) -> str:
    """Return a ratio with its spread, for a table."""
    return f"**{found['median']:.2f}** ({found['min']:.2f}, {found['max']:.2f})"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def write(path: Path, text: str, results: Any, measured: dict[str, float], **more: Any) -> None:
    """Print a table, and write what was measured to a file.

    Args:
        path: The file, which is replaced.
        text: The table, which the documentation shows as it is.
        results: All that was measured.
        measured: What two such files are compared by: numbers, the smaller the better, by what
            they are of. Ratios to a peer of the same process are less at the mercy of the machine
            than milliseconds.
        **more: Further entries.
    """
    print(f"\n{text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "table": text, "measured": measured}
    found |= {"results": results, **more}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nWritten: {path.resolve()}")


def write_table(rows: list[tuple], path: Path, **more: Any) -> None:
    """Print medians and ratios as a table, and write them to a file.

    Args:
        rows: What is done, times by contender, the names of ours and of the peer among them, and
            the peer in words. Where there is a contender "by hand", that in words, too.
        path: The file.
        **more: Further entries of the file.
    """
    results, measured = [], {}
    for work, times, ours, other, peer, *hand in rows:
        one = {
            "work": work,
            "milliseconds": round(statistics.median(times[ours]), 2),
            "peer": peer,
            "rounds": len(times[ours]),
            "ratio_to_peer": ratio(times, ours, other),
        }
        measured[f"{work} / {peer}"] = one["ratio_to_peer"]["median"]
        if hand:
            one |= {"by_hand": hand[0], "ratio_to_hand": ratio(times, ours, "by hand")}
            measured[f"{work} / by hand"] = one["ratio_to_hand"]["median"]
        results.append(one)
    head = ["work", "ours, ms", "peer", "ours / peer (min, max)"]
    cells = [
        [r["work"], f"{r['milliseconds']:.2f}", r["peer"], shown(r["ratio_to_peer"])]
        for r in results
    ]
    if any("by_hand" in r for r in results):
        head += ["by hand", "ours / by hand"]
        for r, row in zip(results, cells):
            row += [r["by_hand"], shown(r["ratio_to_hand"])] if "by_hand" in r else ["", ""]
    write(path, markdown(head, cells), results, measured, **more)
