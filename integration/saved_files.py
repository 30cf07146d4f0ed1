"""Write a saved model for every optimizer, and the weights that its next steps lead to.

Files of a released version are kept in tests/golden/, where later versions are tested to load them:

    KERAS_BACKEND=jax python -m integration.saved_files tests/golden/saved_0.1

The optimizers are the main variants of the Cases in tests/cases/.
"""

import sys
from pathlib import Path

import keras
import numpy as np

STEPS = 2  # before saving, and after


def model_for(optimizer):
    """A small model with a table, two kernels and a bias, compiled."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(7, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1, use_bias=False),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def train(model, first):
    """Take steps on batches that the numbers of the steps choose."""
    for step in range(first, first + STEPS):
        rng = np.random.default_rng(step)
        x = rng.integers(0, 7, (8, 2)).astype("int32")
        model.train_on_batch(x, rng.normal(size=(8, 1)).astype("float32"))


def main(folder):
    """Write `NAME.keras` for each optimizer, and the weights of all of them in `weights.npz`."""
    from tests.cases import CASES

    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for case in CASES:
        model = model_for(case.make())
        train(model, 0)
        model.save(folder / f"{case.name}.keras")
        train(model, STEPS)
        for number, value in enumerate(model.get_weights()):
            weights[f"{case.name}/{number}"] = value
    np.savez_compressed(folder / "weights.npz", **weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
