"""Step time of second-order rules: `python -m integration.benchmarks.second_order`.

GGT beside Momentum, on a vector of 10M parameters. Shampoo on four matrices beside what it cannot
do without, in the backend's own functions: the eigenvalues of the matrices of both dimensions, and
the products that sum them up, put them together again and apply them. Contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import keras

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import ratio, rounds_of

BACKEND = contenders.BACKEND
PARAMETERS = 10_000_000
MATRICES = [(512, 512)] * 4
INTERVAL = 20


def decompositions_and_products() -> Callable[[], None]:
    """Per matrix, for each of two dimensions: eigenvalues, and three products."""
    tensors = [keras.ops.convert_to_tensor(g) for g in contenders.gradients(MATRICES)]

    def work(tensors: list) -> list:
        results = []
        for g in tensors:
            for one in (g, keras.ops.transpose(g)):
                total = one @ keras.ops.transpose(one)
                values, vectors = keras.ops.eigh(total)
                root = (vectors * values) @ keras.ops.transpose(vectors)
                results.append(root @ one)
        return results

    return compiled(work, tensors)


def compiled(work: Callable[[list], list], tensors: list) -> Callable[[], None]:
    """A call of a function of tensors that waits for its results, compiled where steps are."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        function = tf.function(work, autograph=False)
        return lambda: [result.numpy()[0, 0] for result in function(tensors)] and None
    if BACKEND == "torch":
        return lambda: work(tensors) and None
    import jax

    jitted = jax.jit(work)
    return lambda: jax.block_until_ready(jitted(tensors)) and None


def eager(make: Callable) -> Callable[[], None]:
    """A step outside of any compiled function."""
    variables = [keras.Variable(x) for x in contenders.start(MATRICES)]
    given = [keras.ops.convert_to_tensor(g) for g in contenders.gradients(MATRICES)]
    optimizer = make()
    optimizer.build(variables)
    return lambda: optimizer.apply(given, variables)


def seconds_of_an_interval(make: Callable) -> float:
    """Mean time of a step over a whole interval, in ms."""
    step = contenders.of_keras(make, MATRICES)
    for _ in range(INTERVAL):
        step()
    before = time.perf_counter()
    for _ in range(INTERVAL):
        step()
    return 1e3 * (time.perf_counter() - before) / INTERVAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of rounds per row")
    options = parser.parse_args()

    shapes = [(PARAMETERS,)]
    times = rounds_of(
        {
            "GGT": contenders.of_keras(lambda: keras_tfopt.GGT(1e-3), shapes),
            "Momentum": contenders.of_keras(contenders.RULES["Momentum"][0], shapes),
        },
        options.budget,
    )
    rows = [("GGT, window 10, 10M", times, "GGT", "Momentum", "keras_tfopt.Momentum")]

    steps = {
        "Shampoo": contenders.of_keras(lambda: keras_tfopt.Shampoo(0.1), MATRICES),
        "own": decompositions_and_products(),
    }
    if BACKEND == "tensorflow":
        steps["eager"] = eager(lambda: keras_tfopt.Shampoo(0.1))
    times = rounds_of(steps, options.budget)
    own = "eigenvalues and products alone"
    rows.append(("Shampoo, four of 512x512", times, "Shampoo", "own", own))
    if BACKEND == "tensorflow":
        name = "the same, not compiled"
        rows.append(("Shampoo, four of 512x512, tf.function", times, "Shampoo", "eager", name))

    each, seldom = [], []
    for _ in range(5):
        each.append(seconds_of_an_interval(lambda: keras_tfopt.Shampoo(0.1)))
        seldom.append(
            seconds_of_an_interval(lambda: keras_tfopt.Shampoo(0.1, svd_interval=INTERVAL))
        )
    times = {"seldom": seldom, "each": each}
    label = f"Shampoo, svd_interval={INTERVAL}, per step"
    rows.append((label, times, "seldom", "each", "svd_interval=1"))

    write_table(rows, options.out / f"second_order_{BACKEND}.json")


def write_table(rows: list[tuple[str, dict[str, list[float]], str, str, str]], path: Path) -> None:
    """Print medians and ratios as a table, and write them to a file.

    Args:
        rows: What is done, times by contender, the names of ours and of the peer among them, and
            the peer in words.
        path: The file.
    """
    results = [
        {
            "work": work,
            "milliseconds": round(statistics.median(times[ours]), 2),
            "peer": peer,
            "rounds": len(times[ours]),
            "ratio_to_peer": ratio(times, ours, other),
        }
        for work, times, ours, other, peer in rows
    ]
    head = ["work", "ours, ms", "peer", "ours / peer (min, max)"]
    print(f"| {' | '.join(head)} |\n" + "|---" * len(head) + "|")
    for r in results:
        q = r["ratio_to_peer"]
        ratios = f"**{q['median']:.2f}** ({q['min']:.2f}, {q['max']:.2f})"
        print(f"| {r['work']} | {r['milliseconds']:.2f} | {r['peer']} | {ratios} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"backend": BACKEND, "keras": keras.__version__, "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    print(f"\nWritten: {path.resolve()}")


if __name__ == "__main__":
    main()
