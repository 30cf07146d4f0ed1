"""Step time of dense updates against a hand-made peer: `python -m integration.benchmarks.dense`.

Every contender of a row is set up first; then they take turns, a step each, until enough rounds
are measured. A ratio is that of the medians; its spread comes from the ratios of single rounds. The
floor is the time in which the machine could move the rule's bytes once, at the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from integration.benchmarks import contenders, results
from integration.benchmarks.results import ratio, shown
from integration.benchmarks.shapes import HUGE, WORK, Shapes


def rounds_of(steps: dict[str, Callable[[], None]], budget: float) -> dict[str, list[float]]:
    """Times in ms of interleaved steps, at least 9 and at most 200 rounds, in changing order.

    What runs after a long step of one thread finds the other threads asleep.
    """
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, random = list(steps), np.random.default_rng(0)
    begin = time.perf_counter()
    while len(next(iter(times.values()))) < 200:
        random.shuffle(order)
        for name in order:
            before = time.perf_counter()
            steps[name]()
            times[name].append(1e3 * (time.perf_counter() - before))
        if time.perf_counter() - begin > budget and len(times[name]) >= 9:
            break
    return times


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy with as many threads as the backend.

    It is of 256 MiB, and of 1 GiB on a GPU, where the launch would count else.
    """
    source = np.ones(1 << (26 if results.accelerator() is None else 28), "float32")
    if contenders.BACKEND == "torch":
        import torch

        a = keras.ops.convert_to_tensor(source)
        b = torch.empty_like(a)
        step: Callable = lambda: (b.copy_(a), results.wait())  # noqa: E731
    elif contenders.BACKEND == "jax" and results.accelerator() is not None:
        array = keras.ops.convert_to_tensor(source)
        step = lambda: array.copy().block_until_ready()  # noqa: E731
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
    if stock is not None and work not in HUGE:
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
    return result


def table(measured: list[dict]) -> str:
    head = ["rule", "variables", "ours, ms", "peer", "ours / peer (min, max)"]
    head += ["ours / stock Keras", "ours / floor"]
    rows = []
    for r in measured:
        stock = r.get("ratio_to_stock")
        row = [r["rule"], r["work"], f"{r['milliseconds']['ours']:.2f}", r["peer"]]
        row += [shown(r["ratio_to_peer"]), f"{stock['median']:.2f}" if stock else ""]
        rows.append([*row, f"{r['ratio_to_floor']:.2f}"])
    return results.markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=2.5, help="seconds of rounds per table row")
    parser.add_argument("--rules", nargs="*", default=list(contenders.RULES))
    parser.add_argument("--work", nargs="*", default=list(WORK), choices=WORK | HUGE)
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(json.dumps(results.machine()))
    print(f"Copy bandwidth: {bandwidth / 1e9:.1f} GB/s")
    measured = []
    for rule in options.rules:
        short = rule not in contenders.EVERYWHERE and options.work == list(WORK)
        for work in options.work[: 2 if short else None]:
            measured.append(measure(rule, work, (WORK | HUGE)[work](), options.budget, bandwidth))
            gc.collect()
            print(json.dumps(measured[-1]), flush=True)
    results.write(
        options.out / f"dense_{contenders.BACKEND}.json",
        table(measured),
        measured,
        {f"{r['rule']}, {r['work']} / {r['peer']}": r["ratio_to_peer"]["median"] for r in measured},
        copy_gigabytes_per_second=round(bandwidth / 1e9, 1),
    )


if __name__ == "__main__":
    main()
