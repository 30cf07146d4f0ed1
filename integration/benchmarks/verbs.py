"""A step by `minimize` of `keras_tfopt.legacy` against a training loop written by hand.

    KERAS_BACKEND=torch python -m integration.benchmarks.verbs

Both train the same network, eagerly, on a batch of 32 digits with the same optimizer, by turns. The
loop is the one that a user of the backend writes: `loss.backward()` on PyTorch, a `tf.GradientTape`
on TensorFlow, and on JAX, where the verbs are called with `compiled=True`, a jitted function from
values to values. The table gives medians in milliseconds, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

from integration.benchmarks.dense import rounds_of
from integration.benchmarks.results import markdown, ratio, shown, write
from keras_tfopt import legacy

BACKEND = keras.backend.backend()
LAYERS = (3, 30)
WIDTH = 64
RATE = 1e-3
PEERS = {
    "torch": "loss.backward() and apply",
    "tensorflow": "tf.GradientTape and apply",
    "jax": "jax.jit of value_and_grad and stateless_apply",
}


class Training:
    """A network of some layers, one batch, and its loss."""

    def __init__(self, layers: int):
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(layers - 1)]
        self.model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
        digits = load_digits()
        self.x = ops.convert_to_tensor(digits.data[:32].astype("float32") / 16)
        self.y = ops.one_hot(digits.target[:32], 10)
        self.values: list[Any] = []  # of the variables, where the loop holds them

    def weights(self) -> list[np.ndarray]:
        if self.values:
            return [np.asarray(value) for value in self.values[0]]
        return self.model.get_weights()

    def loss(self, x: Any, y: Any) -> Any:
        return self.loss_of(y, self.model(x, training=True))

    def loss_of(self, y: Any, logits: Any) -> Any:
        return ops.mean(keras.losses.categorical_crossentropy(y, logits, from_logits=True))


def verbs(training: Training) -> Callable[[], None]:
    """A step by our verbs."""
    optimizer = legacy.MomentumOptimizer(RATE, 0.9)
    batch = (training.x, training.y)
    if BACKEND != "jax":
        return lambda: optimizer.minimize(training.loss, inputs=batch)

    import jax

    def step() -> None:
        optimizer.minimize(training.loss, inputs=batch, compiled=True)
        jax.block_until_ready([variable.value for variable in training.model.trainable_variables])

    return step


def by_hand(training: Training) -> Callable[[], None]:
    """A step by a loop of the backend, with the same optimizer."""
    model, optimizer = training.model, legacy.MomentumOptimizer(RATE, 0.9).keras
    variables = model.trainable_variables
    optimizer.build(variables)
    if BACKEND == "torch":
        import torch

        def step() -> None:
            model.zero_grad()
            training.loss(training.x, training.y).backward()
            gradients = [variable.value.grad for variable in variables]
            with torch.no_grad():
                optimizer.apply(gradients, variables)

    elif BACKEND == "tensorflow":
        import tensorflow as tf

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = training.loss(training.x, training.y)
            gradients = tape.gradient(loss, variables)
            optimizer.apply(gradients, variables)

    else:
        import jax

        still = [variable.value for variable in model.non_trainable_variables]

        @jax.jit
        def update(values: Any, state: Any) -> tuple:
            def loss(values: Any) -> Any:
                logits, _ = model.stateless_call(values, still, training.x, training=True)
                return training.loss_of(training.y, logits)

            gradients = jax.grad(loss)(values)
            return optimizer.stateless_apply(state, gradients, values)

        now = training.values
        now[:] = [[v.value for v in variables], [v.value for v in optimizer.variables]]

        def step() -> None:
            now[:] = update(*now)
            jax.block_until_ready(now)

    return step


def measure(layers: int, budget: float) -> dict[str, Any]:
    training, other = Training(layers), Training(layers)
    times = rounds_of({"ours": verbs(training), "hand": by_hand(other)}, budget)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"layers": layers, **medians, "ratio": ratio(times, "ours", "hand")}


def table(results: list[dict[str, Any]]) -> str:
    head = ["backend", "network", "minimize, ms", "by hand", "ms", "ours / by hand (min, max)"]
    rows = []
    for r in results:
        row = [BACKEND, f"{r['layers']} dense layers of {WIDTH}", f"{r['ours']:.2f}"]
        rows.append([*row, PEERS[BACKEND], f"{r['hand']:.2f}", shown(r["ratio"])])
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=2.5, help="seconds of rounds a row")
    options = parser.parse_args()
    results = [measure(layers, options.budget) for layers in LAYERS]
    measured = {f"minimize, {r['layers']} layers / by hand": r["ratio"]["median"] for r in results}
    write(options.out / f"verbs_{BACKEND}.json", table(results), results, measured)


if __name__ == "__main__":
    main()
