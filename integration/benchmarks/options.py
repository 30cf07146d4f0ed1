"""Step time with options against none: `python -m integration.benchmarks.options`.

Optimizers of one rule take turns over 200 variables of 64x64 each: one with an option or in a
wrapper, one without, and Adam of Keras with the same option, if it has that. Where gradients are
accumulated, the time is that of the micro-steps that make a step, against as many steps without.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import keras

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import rounds_of
from integration.benchmarks.results import markdown, ratio, shown, write
from integration.benchmarks.shapes import Shapes, many_small

FACTORS = 12
OPTIONS = {
    "clipvalue": {"clipvalue": 0.1},
    "clipnorm": {"clipnorm": 1.0},
    "global_clipnorm": {"global_clipnorm": 1.0},
    "use_ema": {"use_ema": True},
    "weight_decay": {"weight_decay": 0.01},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 4},
}
# What Keras lacks: functions of a function that makes the optimizer with options.
LACKING: dict[str, Callable[[Callable], keras.optimizers.Optimizer]] = {
    "clip_unitwise": lambda make: make(clip_unitwise=0.1),
    "max_norm": lambda make: make(groups={".": {"max_norm": 1.0}}),
    "in VariableClipping": lambda make: keras_tfopt.VariableClipping(make(), {".": [0]}, 1.0),
    "in Multitask": lambda make: keras_tfopt.Multitask(make()),
    "clipnorm, in Cautious": lambda make: keras_tfopt.Cautious(make(clipnorm=1.0)),
    "use_ema, in Lookahead": lambda make: keras_tfopt.Lookahead(make(use_ema=True)),
}
LEARNING_RATES = f"{FACTORS} learning rates"
RULES = {
    "Adam": keras_tfopt.Adam,
    "Momentum": keras_tfopt.Momentum,
    "LARS": keras_tfopt.LARS,
}
CASES = [
    *(("Adam", option) for option in (*OPTIONS, *LACKING)),
    *((rule, LEARNING_RATES) for rule in RULES),
]


def layers(count: int) -> dict:
    """Return groups with a factor for each of the layers that variables v0, v1, ... make."""
    groups = {}
    for layer in range(FACTORS):
        numbers = "|".join(str(n) for n in range(count) if n * FACTORS // count == layer)
        groups[f"^v({numbers})$"] = {"learning_rate_factor": 0.75 ** (FACTORS - 1 - layer)}
    return groups


def repeated(step: Callable[[], None], count: int) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(count):
            step()

    return steps


def measure(rule: str, option: str, shapes: Shapes, budget: float) -> dict:
    make = functools.partial(RULES[rule], contenders.LEARNING_RATE)
    options = OPTIONS.get(option) or {"groups": layers(len(shapes))}
    lacking = LACKING.get(option, lambda make: make(**options))
    steps = {
        "with": contenders.of_keras(lambda: lacking(make), shapes),
        "without": contenders.of_keras(make, shapes),
    }
    if option in OPTIONS:
        stock = functools.partial(keras.optimizers.Adam, contenders.LEARNING_RATE, **options)
        steps["keras"] = contenders.of_keras(stock, shapes)
    count = options.get("gradient_accumulation_steps", 1)
    times = rounds_of({name: repeated(step, count) for name, step in steps.items()}, budget)
    return {
        "rule": rule,
        "option": option,
        "rounds": len(times["with"]),
        "milliseconds": {name: round(statistics.median(t), 3) for name, t in times.items()},
        "ratio": ratio(times, "with", "without"),
        **({"to keras": ratio(times, "with", "keras")} if option in OPTIONS else {}),
    }


def table(results: list[dict]) -> str:
    head = ["backend", "rule", "option", "with it, ms", "without, ms"]
    head += ["with / without (min, max)", "with / Keras's with it (min, max)"]
    rows = []
    for r in results:
        times = [f"{r['milliseconds'][name]:.2f}" for name in ("with", "without")]
        to_keras = shown(r["to keras"]) if "to keras" in r else ""
        row = [contenders.BACKEND, r["rule"], r["option"], *times, shown(r["ratio"]), to_keras]
        rows.append(row)
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of rounds per case")
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    chosen = parser.parse_args()
    results = []
    for rule, option in CASES:
        if rule in chosen.rules:
            results.append(measure(rule, option, many_small(), chosen.budget))
            print(json.dumps(results[-1]), flush=True)
    measured = {f"{r['rule']}, {r['option']} / without": r["ratio"]["median"] for r in results}
    write(chosen.out / f"options_{contenders.BACKEND}.json", table(results), results, measured)


if __name__ == "__main__":
    main()
