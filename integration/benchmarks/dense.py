"""Step time of dense updates beside a hand-made peer: `python -m integration.benchmarks.dense`.

Every contender of a row is set up first; then they take turns, a step each, until enough rounds
are measured. A ratio is that of the medians; its spread comes from the ratios of single rounds. The
floor is the time in which the machine could move the rule's bytes once, at the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks import contenders, costs
from integration.benchmarks.shapes import WORK, Shapes


def rounds_of(steps: dict[str, Callable[[], None]], budget: float) -> dict[str, list[float]]:
    """Times in ms of interleaved steps, at least 9 and at most 200 rounds."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    begin = time.perf_counter()
    while len(next(iter(times.values()))) < 200:
        for name, step in steps.items():
            before = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - before))
        if time.perf_counter() - begin > budget and len(times[name]) >= 9:
            break
    return times


def ratio(times: dict[str, list[float]], ours: str, other: str) -> dict[str, float]:
    """That of the medians, and its spread over single rounds."""
    single = [a / b for a, b in zip(times[ours], times[other])]
    medians = statistics.median(times[ours]) / statistics.median(times[other])
    found = {"min": min(single), "median": medians, "max": max(single)}
    return {name: round(value, 2) for name, value in found.items()}


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying 256 MiB with as many threads as the backend."""
    source = np.ones(1 << 26, "float32")
    if contenders.BACKEND == "torch":
        import torch

        a = torch.from_numpy(source)
        b = torch.empty_like(a)
        step: Callable = lambda: b.copy_(a)  # noqa: E731
    else:
        target = np.empty_like(source)
        step = lambda: np.copyto(target, source)  # noqa: E731
    step()
    best = min(_timed(step) for _ in range(7))
    return 2 * source.nbytes / best


def _timed(step: Callable) -> float:
    before = time.perf_counter()
    step()
    return time.perf_counter() - before


def measure(rule: str, work: str, shapes: Shapes, budget: float, bandwidth: float) -> dict:
    ours, bytes_each, stock = contenders.RULES[rule]
    before = time.perf_counter()
    steps = {"ours": contenders.of_keras(ours, shapes)}
    steps["ours"]()
    first = time.perf_counter() - before
    peer, steps["peer"] = contenders.peer(rule, shapes)
    if stock is not None:
        steps["stock"] = contenders.of_keras(stock, shapes)
    times = rounds_of(steps, budget)
    medians = {name: statistics.median(values) for name, values in times.items()}
    parameters = sum(int(np.prod(shape)) for shape in shapes)
    result = {
        "rule": rule,
        "work": work,
        "variables": len(shapes),
        "parameters": parameters,
        "peer": peer,
        "rounds": len(times["ours"]),
        "milliseconds": {k: round(v, 3) for k, v in medians.items()},
        "first_step_seconds": round(first, 2),
        "ratio_to_floor": round(1e-3 * medians["ours"] / (parameters * bytes_each / bandwidth), 2),
    }
    for other in ("peer", "stock"):
        if other in times:
            result[f"ratio_to_{other}"] = ratio(times, "ours", other)
    del steps
    gc.collect()
    return result


def table(results: list[dict]) -> str:
    head = ["rule", "variables", "ours, ms", "peer", "ours / peer (min, max)"]
    head += ["ours / stock Keras", "ours / floor"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in results:
        peer, stock = r["ratio_to_peer"], r.get("ratio_to_stock")
        lines.append(
            f"| {r['rule']} | {r['work']} | {r['milliseconds']['ours']:.2f} | {r['peer']} | "
            f"**{peer['median']:.2f}** ({peer['min']:.2f}, {peer['max']:.2f}) | "
            f"{stock['median'] if stock else ''} | {r['ratio_to_floor']:.2f} |"
        )
    return "\n".join(lines)


def plot(results: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [f"{r['rule']}, {r['work']}" for r in results]
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(labels) + 1.5), layout="constrained")
    places = np.arange(len(labels))
    for shift, key, name in ((-0.2, "ratio_to_peer", "peer"), (0.2, "ratio_to_stock", "Keras")):
        values = [r[key]["median"] if key in r else np.nan for r in results]
        axes.barh(places + shift, values, 0.38, label=f"time of keras_tfopt / time of {name}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel("ratio of median step times (smaller is better for keras_tfopt)")
    axes.set_title(f"Dense updates on {contenders.BACKEND}, {os.cpu_count()} cores, float32")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=2.5, help="seconds of rounds per table row")
    parser.add_argument("--rules", nargs="*", default=list(contenders.RULES))
    parser.add_argument("--work", nargs="*", default=list(WORK))
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    machine = {
        "backend": contenders.BACKEND,
        "keras": keras.__version__,
        contenders.BACKEND: __import__(contenders.BACKEND).__version__,
        "keras_tfopt": keras_tfopt.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "copy_gigabytes_per_second": round(bandwidth / 1e9, 1),
    }
    print(json.dumps(machine))
    results = []
    for rule in options.rules:
        short = rule not in contenders.EVERYWHERE and options.work == list(WORK)
        for work in options.work[: 2 if short else None]:
            result = measure(rule, work, WORK[work](), options.budget, bandwidth)
            results.append(result)
            print(json.dumps(result), flush=True)
    extra = {"first_step_of_fit_seconds": costs.first_steps(), "last_steps": costs.growth()}
    print("\n" + table(results) + "\n")
    for name, seconds in extra["first_step_of_fit_seconds"].items():
        print(f"First step of fit with {name}: {seconds} seconds")
    print(f"Time of the last of 10,000 steps over that of the first: {extra['last_steps']}")
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"dense_{contenders.BACKEND}"
    stem.with_suffix(".json").write_text(
        json.dumps({"machine": machine, "results": results, **extra}, indent=1) + "\n"
    )
    plot(results, stem.with_suffix(".png"))
    print(f"\nWritten: {stem.with_suffix('.json').resolve()}, {stem.with_suffix('.png').resolve()}")


if __name__ == "__main__":
    main()
