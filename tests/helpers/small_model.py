"""Variables of a small model, and gradients for them.

The names matter. Tests exclude `bias` by its name. Variables named `embeddings` are row variables.
`fresh/kernel` begins with a norm of zero, and `frozen` never gets a gradient.
"""

import numpy as np

from tests.helpers.stepping import Rows

INITIAL = {
    "scale": 0.7,
    "layer/kernel": np.random.default_rng(1).normal(size=(4, 3)),
    "layer/bias": np.random.default_rng(2).normal(size=5),
    "conv/kernel": np.random.default_rng(3).normal(size=(2, 1, 2, 3)),
    "fresh/kernel": np.zeros((3, 2)),
    "table/embeddings": np.random.default_rng(4).normal(size=(7, 3)),
    "linear/embeddings": np.random.default_rng(5).normal(size=6),
    "frozen": np.random.default_rng(6).normal(size=2),
}
# For tests that need few variables. Backends compile a program for each shape, which takes long.
FEW = ("layer/kernel", "layer/bias", "table/embeddings", "frozen")
STEPS = ("normal", "normal", "zero", "small", "masked", "large", "normal")
_STD = {"normal": 0.5, "zero": 0.0, "small": 1e-3, "masked": 0.5, "large": 5.0}
_ROW_COUNT = 5  # is the same at every step, since JAX compiles a program for each count


def initial(dtype="float32", paths=tuple(INITIAL)):
    """Return the first values of variables, as arrays of `dtype`."""
    return {path: np.asarray(INITIAL[path], dtype) for path in paths}


def gradients(dtype="float32", steps=STEPS, seed=0, paths=tuple(INITIAL)):
    """Return a dict of gradients per step: arrays, and row gradients with repeated rows."""
    rng = np.random.default_rng(seed)
    plan = []
    for kind in steps:
        step = {}
        for path in paths:
            shape = np.shape(INITIAL[path])
            if path == "frozen":
                continue
            if path.endswith("embeddings"):
                g = rng.normal(size=(_ROW_COUNT, *shape[1:])) * _STD[kind]
                if kind == "masked":
                    g[1:3] = 0.0  # `indices` still name these rows
                indices = rng.integers(0, shape[0] - 1, size=_ROW_COUNT)  # never the last row
                indices[-1] = indices[0]
                step[path] = Rows(g.astype(dtype), indices.astype("int32"))
            else:
                g = rng.normal(size=shape) * _STD[kind]
                if kind == "masked":
                    g = g * (rng.random(shape) < 0.5)
                step[path] = np.asarray(g, dtype)
        plan.append(step)
    return plan
