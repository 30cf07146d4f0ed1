"""Step time with parameter groups beside one group: `python -m integration.benchmarks.groups`.

Two optimizers of one rule take turns over 200 variables of 64x64 each: one has twelve layer-wise
learning rates, the other one for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import rounds_of
from integration.benchmarks.results import markdown, ratio, shown, write
from integration.benchmarks.shapes import Shapes, many_small

FACTORS = 12
RULES = {
    "Adam": keras_tfopt.Adam,
    "Momentum": keras_tfopt.Momentum,
    "LARS": keras_tfopt.LARS,
}


def layers(count: int) -> dict:
    """Return groups with a factor for each of the layers that variables v0, v1, ... make."""
    groups = {}
    for layer in range(FACTORS):
        numbers = "|".join(str(n) for n in range(count) if n * FACTORS // count == layer)
        groups[f"^v({numbers})$"] = {"learning_rate_factor": 0.75 ** (FACTORS - 1 - layer)}
    return groups


def measure(rule: str, shapes: Shapes, budget: float) -> dict:
    make, groups = RULES[rule], layers(len(shapes))
    rate = contenders.LEARNING_RATE
    steps = {
        "groups": contenders.of_keras(lambda: make(rate, groups=groups), shapes),
        "one": contenders.of_keras(lambda: make(rate), shapes),
    }
    times = rounds_of(steps, budget)
    return {
        "rule": rule,
        "rounds": len(times["one"]),
        "milliseconds": {name: round(statistics.median(t), 3) for name, t in times.items()},
        "ratio": ratio(times, "groups", "one"),
    }


def table(results: list[dict]) -> str:
    head = ["backend", "rule", "12 learning rates, ms", "one, ms", "12 / one (min, max)"]
    rows = []
    for r in results:
        times = [f"{r['milliseconds'][name]:.2f}" for name in ("groups", "one")]
        rows.append([contenders.BACKEND, r["rule"], *times, shown(r["ratio"])])
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of rounds per rule")
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    options = parser.parse_args()
    results = []
    for rule in options.rules:
        results.append(measure(rule, many_small(), options.budget))
        print(json.dumps(results[-1]), flush=True)
    measured = {f"{r['rule']}, 12 learning rates / one": r["ratio"]["median"] for r in results}
    write(options.out / f"groups_{contenders.BACKEND}.json", table(results), results, measured)


if __name__ == "__main__":
    main()
