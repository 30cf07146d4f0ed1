"""A defect of optimizers of one's own: no fast path."""

from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tfopt
from integration.stock_defects.findings import attempt, probe
from integration.stock_defects.scenarios import variable


class StockSubclass(keras.optimizers.Adam):
    """A rule of one's own in stock Keras."""


@keras_tfopt.register
class OwnAdam(keras_tfopt.Rule):
    """A rule of one's own in this package."""

    def __init__(self, learning_rate: Any = 0.001, **base: Any):
        super().__init__(learning_rate, **base)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": keras_tfopt.zeros(like), "v": keras_tfopt.zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple:
        m, v = 0.9 * s.m + 0.1 * g, 0.999 * s.v + 0.001 * g * g
        return x - t.lr * m / (ops.sqrt(v) + 1e-8), {"m": m, "v": v}


@probe(
    "8",
    "Optimizers of one's own run variable by variable, without the fast path",
    "operations per variable in a step on 200 variables",
    seen_on=("torch",),
    backends=("torch",),
)
def per_variable() -> tuple:
    import torch

    def scenario(optimizer: Any) -> float:
        variables = [variable(np.ones(3)) for _ in range(200)]
        grads = [ops.ones(3) for _ in variables]
        for _ in range(2):
            optimizer.apply(grads, variables)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.apply(grads, variables)
        arithmetic = ("add", "sub", "mul", "div", "sqrt", "pow", "square", "lerp", "addc", "rsub")
        names = [event.name.removeprefix("aten::").rstrip("_") for event in profile.events()]
        return sum(name.startswith(arithmetic) for name in names) / len(variables)

    return (
        0.0,
        1.0,  # less than one: the arithmetic is not done per variable
        attempt(scenario, StockSubclass),
        attempt(scenario, OwnAdam),
    )
