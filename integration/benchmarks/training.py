"""Whole training: `python -m integration.benchmarks.training`.

Steps of `fit`, data and callbacks included, with Adam of keras_tfopt and of Keras; the same model
in a loop of the backend's own with its fused Adam; and `fit` with an optimizer that reads the
gradients and takes no step. All take turns, some steps each. No training can be faster than the
last of these and the fused step alone, added up: that is the floor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.embedding import Intervals
from integration.benchmarks.results import BACKEND, markdown, shown, write

RATE = contenders.LEARNING_RATE
STEPS = 24  # in a turn
SKIPPED = 4  # of these, until a training has settled
WORDS, LENGTH = 5000, 64
ROWS, WIDTH = 100_000, 32

Data = tuple[np.ndarray, np.ndarray]


def convolutional() -> tuple[keras.Model, Data, int]:
    """Four convolutions with normalization, on handwritten digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    parts = []
    for width in (32, 64, 64, 128):
        parts += [layers.Conv2D(width, 3, padding="same", use_bias=False)]
        parts += [layers.BatchNormalization(), layers.Activation("relu")]
    parts += [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *parts])
    return model, ((images / 16).reshape(-1, 8, 8, 1).astype("float32"), labels), 64


def transformer() -> tuple[keras.Model, Data, int]:
    """Two layers of width 128 on tokens, with a label for each of 20 classes."""
    rng = np.random.default_rng(0)
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 128)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 32)(x, x)
        x = layers.LayerNormalization()(x + attended)
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, "gelu")(x)))
    model = keras.Model(inputs, layers.Dense(20)(layers.GlobalAveragePooling1D()(x)))
    tokens = rng.integers(0, WORDS, (16 * STEPS, LENGTH), dtype="int32")
    return model, (tokens, tokens[:, 0] % 20), 16


def deep(count: int = 100) -> tuple[keras.Model, Data, int]:
    """Dense layers of 64, each with two variables."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    hidden = [layers.Dense(64, "selu", kernel_initializer="lecun_normal") for _ in range(count - 1)]
    model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(10)])
    return model, ((images / 16).astype("float32"), labels), 64


def retrieval(layer: Callable = layers.Embedding) -> tuple[keras.Model, Data, int]:
    """Two towers with tables of 100,000 rows, trained to tell pairs that belong together."""
    rng = np.random.default_rng(0)
    inputs = keras.Input((2,), dtype="int32")
    towers = [layers.Dense(WIDTH)(layer(ROWS, WIDTH)(inputs[:, side])) for side in range(2)]
    logits = ops.matmul(towers[0], ops.transpose(towers[1]))
    model = keras.Model(inputs, logits)
    ids = rng.integers(0, ROWS, (256 * STEPS, 2), dtype="int32")
    return model, (ids, np.tile(np.arange(256), STEPS)), 256


WORK: dict[str, Callable[..., tuple[keras.Model, Data, int]]] = {
    "convolutional net": convolutional,
    "transformer": transformer,
    "100 dense layers": deep,
    "retrieval, two tables": retrieval,
}


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class NoStep(keras.optimizers.Optimizer):
    """Reads the gradients, so that they are computed, and changes nothing else."""

    def build(self, variables: list) -> None:
        super().build(variables)
        self.kept = [self.add_variable_from_reference(v, "gradient") for v in variables]
        self.total = self.add_variable((), name="total")

    def apply(self, grads: list, trainable_variables: list | None = None) -> None:
        if not self.built:
            self.build(trainable_variables)
        if BACKEND == "torch":  # where nothing is left out that has no use
            return
        for gradient, kept in zip(grads, self.kept, strict=True):
            if hasattr(gradient, "indices"):
                self.total.assign(ops.sum(gradient.values))
            else:
                kept.assign(gradient)


class Fit:
    """A model in `fit`, and the time of its steps."""

    def __init__(self, made: tuple[keras.Model, Data, int], optimizer: Any):
        self.model, (x, y), self.batch = made
        self.x, self.y = x[: STEPS * self.batch], y[: STEPS * self.batch]
        self.model.compile(optimizer, loss())

    def weights(self) -> list[np.ndarray]:
        return self.model.get_weights()

    def turn(self) -> list[float]:
        intervals = Intervals()
        options = {"batch_size": self.batch, "verbose": 0, "shuffle": False}
        self.model.fit(self.x, self.y, callbacks=[intervals], **options)
        return intervals.milliseconds()[SKIPPED:].tolist()


class Loop:
    """The same model in a loop of the backend's own, with its fused Adam."""

    def __init__(self, made: tuple[keras.Model, Data, int]):
        self.model, (self.x, self.y), self.batch = made
        self.values: list = []  # of JAX: trained ones, others, the optimizer's
        self.step = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}[BACKEND](self)

    def weights(self) -> list[np.ndarray]:
        return [np.asarray(v) for v in self.values[0]] if self.values else self.model.get_weights()

    def turn(self) -> list[float]:
        times = []
        for x, y in self.batches():
            before = time.perf_counter()
            self.step(x, y)
            times.append(1e3 * (time.perf_counter() - before))
        return times[SKIPPED:]

    def batches(self) -> Iterator[Data]:
        for number in range(min(STEPS, len(self.x) // self.batch)):
            part = slice(number * self.batch, (number + 1) * self.batch)
            yield self.x[part], self.y[part]


def _torch(training: Loop) -> Callable:
    import torch

    model = training.model
    parameters = [variable.value for variable in model.trainable_variables]
    optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-7, fused=True)
    of = loss()

    def step(x: np.ndarray, y: np.ndarray) -> float:
        optimizer.zero_grad()
        found = of(torch.from_numpy(y), model(torch.from_numpy(x), training=True))
        found.backward()
        optimizer.step()
        return found.item()

    return step


def _tensorflow(training: Loop) -> Callable:
    import tensorflow as tf

    model = training.model
    variables = [variable.value for variable in model.trainable_variables]
    slots = [[tf.Variable(tf.zeros_like(v)) for v in variables] for _ in range(2)]
    count, of = tf.Variable(0.0), loss()

    @tf.function(autograph=False)
    def update(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            found = of(y, model(x, training=True))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(found, variables)]
        contenders.apply_adam(variables, *slots, gradients, count.assign_add(1.0))
        return found

    return lambda x, y: float(update(tf.constant(x), tf.constant(y)))


def _jax(training: Loop) -> Callable:
    import jax
    import optax

    model, values = training.model, training.values
    optimizer, of = optax.adam(RATE, eps=1e-7), loss()

    def update(trained: Any, other: Any, state: Any, x: Any, y: Any) -> tuple:
        def objective(trained: Any, other: Any) -> tuple:
            logits, other = model.stateless_call(trained, other, x, training=True)
            return of(y, logits), other

        (found, other), gradients = jax.value_and_grad(objective, has_aux=True)(trained, other)
        updates, state = optimizer.update(gradients, state, trained)
        return found, optax.apply_updates(trained, updates), other, state

    update = jax.jit(update, donate_argnums=(0, 1, 2))
    trained = [jax.numpy.array(v.value) for v in model.trainable_variables]
    other = [jax.numpy.array(v.value) for v in model.non_trainable_variables]
    values[:] = [trained, other, optimizer.init(trained)]

    def step(x: np.ndarray, y: np.ndarray) -> float:
        found, *values[:] = update(*values, x, y)
        return float(found)

    return step


def measure(work: str, turns: int) -> dict[str, Any]:
    """Measure the trainings of one model, by turns."""
    make = WORK[work]
    ours = keras_tfopt.Adam(RATE, epsilon=1e-7)
    made = make()
    if make is retrieval:
        made, ours = make(keras_tfopt.layers.Embedding), keras_tfopt.LazyAdam(RATE, epsilon=1e-7)
    sides: dict[str, Any] = {
        "ours": Fit(made, ours),
        "stock": Fit(make(), keras.optimizers.Adam(RATE)),
        "none": Fit(make(), NoStep(RATE)),
        "loop": Loop(make()),
    }
    shapes = [tuple(v.shape) for v in sides["stock"].model.trainable_variables]
    peer, fused = contenders.peer("Adam", shapes)
    times: dict[str, list[float]] = {name: [] for name in (*sides, "fused")}
    for turn in range(turns + 1):
        for name, side in sides.items():
            found = statistics.median(side.turn())
            if turn:  # the first one compiles
                times[name].append(found)
        alone = []
        for _ in range(STEPS):
            before = time.perf_counter()
            fused()
            alone.append(1e3 * (time.perf_counter() - before))
        if turn:
            times["fused"].append(statistics.median(alone))
    floor = [a + b for a, b in zip(times["none"], times["fused"])]
    medians = {name: statistics.median(values) for name, values in times.items()}
    single = [a / b for a, b in zip(times["ours"], floor)]
    whole = medians["ours"] / (medians["none"] + medians["fused"])
    return {
        "work": work,
        "peer": peer,
        "milliseconds": {name: round(value, 2) for name, value in medians.items()},
        "share": round(max(0.0, 1 - medians["none"] / medians["ours"]), 2),
        "ratio_to_floor": {
            "min": round(min(single), 2),
            "median": round(whole, 2),
            "max": round(max(single), 2),
        },
    }


def table(results: list[dict]) -> str:
    head = ["model", "ours, ms", "stock Keras", "own loop", "no step", "fused step alone"]
    head += ["ours / floor (min, max)", "share of the optimizer"]
    rows = []
    for r in results:
        times = [f"{r['milliseconds'][n]:.2f}" for n in ("ours", "stock", "loop", "none", "fused")]
        share = f"{100 * r['share']:.0f} %"
        rows.append([r["work"], *times, shown(r["ratio_to_floor"]), share])
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--work", nargs="*", default=list(WORK), choices=WORK)
    options = parser.parse_args()
    results = [measure(work, options.turns) for work in options.work]
    measured = {f"fit, {r['work']} / floor": r["ratio_to_floor"]["median"] for r in results}
    write(options.out / f"training_{BACKEND}.json", table(results), results, measured)


if __name__ == "__main__":
    main()
