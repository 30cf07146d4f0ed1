"""Step time of today's rules: `python -m integration.benchmarks.modern`.

Contenders of a row take turns in one process. `--only Muon` and so on takes some of the rows:

- Muon on a transformer of 30 million parameters, against `torch.optim.Muon` or `optax.contrib.muon`
  with the same products; on TensorFlow against `keras.optimizers.Muon`.
- SOAP and DistributedShampoo against what they cannot do without, in the backend's own functions,
  and against the same rule written by hand. A round is an interval of ten steps, of which one has
  new bases or roots.
- Rules of single elements against Adam, for as many arrays read. Adam reads four: the gradient, the
  variable and two slots. Of a rule with one slot, three quarters of Adam's time are the peer.
- Adafactor and CAME, which keep means of rows and columns, against Adam.
- Schedule-Free and Cautious against the optimizer inside.

By hand, the latter two are a loop that reads and writes as many arrays, of which nothing is
calculated but a mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
from keras import ops

import keras_tfopt
from integration.benchmarks import by_hand, contenders
from integration.benchmarks.dense import rounds_of
from integration.benchmarks.results import wait, write_table
from integration.benchmarks.second_order import compiled
from integration.benchmarks.shapes import (
    Shapes,
    large_transformer,
    many_small,
    one_large,
    transformer,
)

BACKEND = contenders.BACKEND
MATRICES = [(512, 512)] * 4
INTERVAL = 10

Work = Callable[[list], list]


def products_of_soap(tensors: list) -> list:
    """Sums of products, two arrays rotated and one rotated back."""
    results = []
    for n, g in enumerate(tensors):
        left, right, m = (tensors[n - k] for k in (1, 2, 3))  # or XLA makes some products once
        turned = ops.transpose(left) @ m @ right
        results += [g @ ops.transpose(g), ops.transpose(g) @ g, ops.transpose(left) @ g @ right]
        results.append(left @ turned @ ops.transpose(right))
    return results


def bases_of_soap(tensors: list) -> list:
    return [ops.qr(one @ one)[0] for g in tensors for one in (g, ops.transpose(g))]


def products_of_shampoo(tensors: list) -> list:
    """Sums of products, and a direction times both roots; g stands for all matrices."""
    results = []
    for g in tensors:
        results += [g @ ops.transpose(g), ops.transpose(g) @ g, g @ g @ g]
    return results


def roots_of_shampoo(tensors: list) -> list:
    results = []
    for g in tensors:
        for one in (g, 2 * g):
            values, vectors = ops.eigh(one + ops.transpose(one))
            results.append((vectors * values) @ ops.transpose(vectors))
    return results


# {optimizer: (how it is made, work of each step, work of one step of an interval, both by hand)}
TABLE: dict[str, tuple[Callable, Work, Work, list[by_hand.Step]]] = {
    "SOAP": (
        lambda: keras_tfopt.SOAP(1e-3, precondition_frequency=INTERVAL),
        products_of_soap,
        bases_of_soap,
        [by_hand.step_of_soap, by_hand.bases_of_soap],
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
        [by_hand.step_of_shampoo, by_hand.roots_of_shampoo],
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


Row = tuple  # see `write_table`


def second_order(name: str, budget: float) -> Iterator[Row]:
    make, each, once, written_by_hand = TABLE[name]
    tensors = [ops.convert_to_tensor(g) for g in contenders.gradients(MATRICES)]
    steps = {
        name: interval_of(contenders.of_keras(make, MATRICES), None),
        "own": interval_of(compiled(each, tensors), compiled(once, tensors)),
        "by hand": interval_of(*by_hand.with_matrices(written_by_hand, MATRICES)),
    }
    work, own = f"{name}, four of 512x512, {INTERVAL} steps", "decompositions and products alone"
    yield work, rounds_of(steps, budget), name, "own", own, "the rule"


# ---- Muon ----------------------------------------------------------------------------------------


def our_muon() -> keras_tfopt.Muon:
    """The products are those of the peer: `torch.optim.Muon` makes them in bfloat16."""
    return keras_tfopt.Muon(
        1e-3,
        scaling="original",
        weight_decay=0.01,
        products="bfloat16" if BACKEND == "torch" else None,
        others=keras_tfopt.NadamW(1e-3, weight_decay=0.01),
        other_variables="^v0$",
    )


def muon_of_torch(shapes: Shapes) -> tuple[str, Callable[[], None]]:
    import torch

    parameters = contenders.torch_parameters(shapes)
    matrices = [p for p in parameters[1:] if p.ndim == 2]
    others = [p for p in parameters if p.ndim < 2 or p is parameters[0]]
    optimizers = [
        torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.01),
        torch.optim.AdamW(others, lr=1e-3, weight_decay=0.01, fused=True),
    ]

    def run() -> None:
        for one in optimizers:
            one.step()
        wait()

    return "torch.optim.Muon, AdamW", run


def muon_of_optax(shapes: Shapes) -> tuple[str, Callable[[], None]]:
    import optax

    matrix = optax.contrib.MuonDimensionNumbers()
    numbers = [matrix if len(shape) == 2 and i else None for i, shape in enumerate(shapes)]
    rule = optax.contrib.muon(
        1e-3,
        weight_decay=0.01,
        adam_weight_decay=0.01,
        muon_weight_dimension_numbers=numbers,
    )
    return "optax.contrib.muon", contenders.optax_step(rule, shapes)


def muon_of_keras(shapes: Shapes) -> tuple[str, Callable[[], None]]:
    make = lambda: keras.optimizers.Muon(1e-3, exclude_layers=["v0"], ns_steps=5)  # noqa: E731
    return "keras.optimizers.Muon", contenders.of_keras(make, shapes)


MUON = {"torch": muon_of_torch, "jax": muon_of_optax, "tensorflow": muon_of_keras}


def muon(shapes: Shapes, budget: float) -> Iterator[Row]:
    peer, step = MUON[BACKEND](shapes)
    steps = {"ours": contenders.of_keras(our_muon, shapes), "peer": step}
    yield "Muon, transformer of 30M", rounds_of(steps, budget), "ours", "peer", peer


# ---- Rules of elements, and wrappers -------------------------------------------------------------

# {rule: slots of a variable}
SLOTS = {
    "Lion": 1,
    "NadamW": 2,
    "ADOPT": 2,
    "LaProp": 2,
    "SimplifiedAdEMAMix": 2,
    "AdEMAMix": 3,
    "MARS": 3,
    "Adan": 4,
}
ADAM = 2


def elements(works: dict[str, Shapes], budget: float) -> Iterator[Row]:
    for name, slots in SLOTS.items():
        for work, shapes in works.items():
            steps = beside_adam(name, shapes)
            read, by_adam = 2 + slots, 2 + ADAM
            # MARS divides by a norm of what it makes of the gradient and the last one.
            moved = read, 1 + slots, 2 if name == "MARS" else 0
            times, said = beside_least(steps, moved, shapes, budget)
            times["Adam"] = [t * read / by_adam for t in times["Adam"]]
            yield f"{name}, {work}", times, "ours", "Adam", f"Adam, times {read}/{by_adam}", said


def factored(works: dict[str, Shapes], budget: float) -> Iterator[Row]:
    for name in ("Adafactor", "CAME"):
        for work, shapes in works.items():
            times = rounds_of(beside_adam(name, shapes), budget)
            yield f"{name}, {work}", times, "ours", "Adam", "Adam"


def beside_adam(name: str, shapes: Shapes) -> dict[str, Callable]:
    """Return a step of a rule and one of Adam."""
    makes = {"ours": getattr(keras_tfopt, name), "Adam": keras_tfopt.Adam}
    return {
        n: contenders.of_keras(lambda make=make: make(1e-3), shapes) for n, make in makes.items()
    }


Moved = tuple[int, int, int]
"""Arrays that are read, that are written, and that are read once more before."""


def beside_least(
    steps: dict[str, Callable], moved: Moved, shapes: Shapes, budget: float
) -> tuple[dict[str, list[float]], str]:
    """Return the times of steps, and of the least step with its name in the table."""
    read, written, before = moved
    steps = {**steps, "by hand": by_hand.least_step(shapes, *moved)}
    return rounds_of(steps, budget), f"reads {before + read}, writes {written}"


# {what is around or in the place of an optimizer: (how it is made, the optimizer, what is moved)}
AROUND: dict[str, tuple[Callable, Callable, Moved]] = {
    "ScheduleFree(Momentum)": (
        lambda: keras_tfopt.ScheduleFree(keras_tfopt.Momentum(1e-3)),
        lambda: keras_tfopt.Momentum(1e-3),
        (4, 4, 0),
    ),
    "ScheduleFree(Adam)": (
        lambda: keras_tfopt.ScheduleFree(keras_tfopt.Adam(1e-3, beta_1=0.0)),
        lambda: keras_tfopt.Adam(1e-3, beta_1=0.0),
        (5, 5, 0),
    ),
    "ScheduleFreeSGD": (
        lambda: keras_tfopt.ScheduleFreeSGD(1e-3),
        lambda: keras_tfopt.Momentum(1e-3),
        (3, 2, 0),
    ),
    "ScheduleFreeAdamW": (
        lambda: keras_tfopt.ScheduleFreeAdamW(1e-3),
        lambda: keras_tfopt.Adam(1e-3),
        (4, 3, 0),
    ),
    "MovingAverage(Adam)": (
        lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam(1e-3)),
        lambda: keras_tfopt.Adam(1e-3),
        (5, 4, 0),
    ),
    "AdamW": (
        lambda: keras_tfopt.AdamW(weight_decay=1e-4, learning_rate=1e-3),
        lambda: keras_tfopt.Adam(1e-3),
        (4, 3, 0),
    ),
    "Cautious(Adam)": (
        lambda: keras_tfopt.Cautious(keras_tfopt.Adam(1e-3)),
        lambda: keras_tfopt.Adam(1e-3),
        (4, 3, 4),
    ),
}


def around(works: dict[str, Shapes], budget: float) -> Iterator[Row]:
    for name, (make, inside, moved) in AROUND.items():
        for work, shapes in works.items():
            steps = {
                "ours": contenders.of_keras(make, shapes),
                "inside": contenders.of_keras(inside, shapes),
            }
            times, said = beside_least(steps, moved, shapes, budget)
            yield f"{name}, {work}", times, "ours", "inside", type(inside()).__name__, said


def main() -> None:
    works = {"one of 20M": one_large(), "200 of 64x64": many_small()}
    parts: dict[str, Callable[[float], Iterator[Row]]] = {
        "Muon": lambda budget: muon(large_transformer(), budget),
        "SOAP": lambda budget: second_order("SOAP", budget),
        "DistributedShampoo": lambda budget: second_order("DistributedShampoo", budget),
        "elements": lambda budget: elements(works, budget),
        "factored": lambda budget: factored(works | {"transformer": transformer()}, budget),
        "around": lambda budget: around(works, budget),
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of rounds per row")
    parser.add_argument("--only", choices=parts, nargs="+", default=list(parts))
    options = parser.parse_args()
    rows = [row for part in options.only for row in parts[part](options.budget)]
    write_table(rows, options.out / f"modern_{BACKEND}.json")


if __name__ == "__main__":
    main()
