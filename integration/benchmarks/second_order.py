"""Step time of second-order rules: `python -m integration.benchmarks.second_order`.

GGT against Momentum, on a vector of 10M parameters. Shampoo on four matrices against what it cannot
do without, in the backend's own functions: the eigenvalues of the matrices of both dimensions, and
the products that sum them up, put them together again and apply them. Contenders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import keras

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import copy_bandwidth, rounds_of
from integration.benchmarks.results import wait, write_table

BACKEND = contenders.BACKEND
PARAMETERS = 10_000_000
MATRICES = [(512, 512)] * 4
INTERVAL = 20
BYTES_OF_GGT = 4 * (12 + 13 + 3)  # read by the sums, read by the step, written


def decompositions_and_products(decomposed: bool = True) -> Callable[[], None]:
    """Per matrix, for each of two dimensions: eigenvalues, and three products; or two products."""
    tensors = [keras.ops.convert_to_tensor(g) for g in contenders.gradients(MATRICES)]

    def work(tensors: list) -> list:
        results = []
        for g in tensors:
            for one in (g, keras.ops.transpose(g)):
                total = one @ keras.ops.transpose(one)
                if decomposed:
                    values, vectors = keras.ops.eigh(total)
                    total = (vectors * values) @ keras.ops.transpose(vectors)
                results.append(total @ one)
        return results

    return compiled(work, tensors)


def compiled(work: Callable[[list], list], tensors: list) -> Callable[[], None]:
    """A call of a function of tensors that waits for its results, compiled where steps are."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        function = tf.function(work, autograph=False)
        return lambda: [result.numpy()[0, 0] for result in function(tensors)] and None
    if BACKEND == "torch":
        return lambda: (work(tensors), wait()) and None
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
    # The moment and the rows of the window are read once for the sums and once for the step.
    bandwidth = copy_bandwidth()
    times["floor"] = [1e3 * PARAMETERS * BYTES_OF_GGT / bandwidth] * len(times["GGT"])
    rows = [
        ("GGT, window 10, 10M", times, "GGT", "Momentum", "keras_tfopt.Momentum"),
        ("GGT, window 10, 10M", times, "GGT", "floor", "a copy of the bytes that it moves"),
    ]

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
    # No interval can be faster than the products of each step and its part of the eigenvalues.
    work = {"all": decompositions_and_products(), "products": decompositions_and_products(False)}
    alone = rounds_of(work, options.budget)
    products, whole = statistics.median(alone["products"]), statistics.median(alone["all"])
    times["bound"] = [products + (whole - products) / INTERVAL] * len(each)
    label = f"products, and eigenvalues every {INTERVAL} steps, alone"
    rows.append((label, times, "bound", "each", "svd_interval=1"))

    write_table(rows, options.out / f"second_order_{BACKEND}.json")


if __name__ == "__main__":
    main()
