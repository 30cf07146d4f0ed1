"""Adagrad (Duchi, Hazan and Singer 2011), diagonal, the sum starting above zero, no epsilon."""

import numpy as np

from tests.reference import Reference


class Adagrad(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, initial_accumulator_value=0.1):
        self.learning_rate, self.initial = learning_rate, initial_accumulator_value

    def slots(self, x):
        return {"accumulator": np.full_like(x, self.initial)}

    def update(self, g, x, s, step, path):
        total = s["accumulator"] + g * g
        return x - self.lr(step) / np.sqrt(total) * g, {"accumulator": total}
