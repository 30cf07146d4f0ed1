"""Step time of today's rules: `python -m integration.benchmarks.modern`.

Each beside what it cannot do without, in the backend's own functions. A round is an interval of ten
steps, of which one has new bases or roots. Contenders take turns. `--only SOAP` runs one of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from keras import ops

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import rounds_of
from integration.benchmarks.second_order import compiled, write_table

BACKEND = contenders.BACKEND
MATRICES = [(512, 512)] * 4
INTERVAL = 10

Work = Callable[[list], list]


def products_of_soap(tensors: list) -> list:
    """Sums of products, two arrays rotated and one rotated back; g stands for all matrices."""
    results = []
    for g in tensors:
        results += [g @ ops.transpose(g), ops.transpose(g) @ g]
        results += [ops.transpose(g) @ g @ g, ops.transpose(g) @ g @ g, g @ g @ ops.transpose(g)]
    return results


def bases_of_soap(tensors: list) -> list:
    return [ops.qr(one @ one)[0] for g in tensors for one in (g, ops.transpose(g))]


def products_of_shampoo(tensors: list) -> list:
    """Sums of products, and a direction times both roots."""
    results = []
    for g in tensors:
        results += [g @ ops.transpose(g), ops.transpose(g) @ g, g @ g @ g]
    return results


def roots_of_shampoo(tensors: list) -> list:
    results = []
    for g in tensors:
        for one in (g, ops.transpose(g)):
            values, vectors = ops.eigh(one + ops.transpose(one))
            results.append((vectors * values) @ ops.transpose(vectors))
    return results


# {optimizer: (how it is made, work of each step, work of one step of an interval)}
TABLE: dict[str, tuple[Callable, Work, Work]] = {
    "SOAP": (
        lambda: keras_tfopt.SOAP(1e-3, precondition_frequency=INTERVAL),
        products_of_soap,
        bases_of_soap,
    ),
    "DistributedShampoo": (
        lambda: keras_tfopt.DistributedShampoo(
            1e-3,
            beta_2=0.99,
            epsilon=1e-6,
            grafting="adam",
            precondition_frequency=INTERVAL,
            target_parameter_dimensionality=2,
        ),
        products_of_shampoo,
        roots_of_shampoo,
    ),
}


def interval_of(each: Callable[[], None], once: Callable[[], None] | None) -> Callable[[], None]:
    """An interval of steps, and what is done once in it."""

    def run() -> None:
        for _ in range(INTERVAL):
            each()
        if once is not None:
            once()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of rounds per row")
    parser.add_argument("--only", choices=TABLE, help="one of the optimizers")
    options = parser.parse_args()

    rows = []
    for name, (make, each, once) in TABLE.items():
        if options.only not in (None, name):
            continue
        tensors = [ops.convert_to_tensor(g) for g in contenders.gradients(MATRICES)]
        steps = {
            name: interval_of(contenders.of_keras(make, MATRICES), None),
            "own": interval_of(compiled(each, tensors), compiled(once, tensors)),
        }
        work = f"{name}, four of 512x512, {INTERVAL} steps"
        peer = "decompositions and products alone"
        rows.append((work, rounds_of(steps, options.budget), name, "own", peer))
    write_table(rows, options.out / f"modern_{BACKEND}.json")


if __name__ == "__main__":
    main()
