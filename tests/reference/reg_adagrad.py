"""Adagrad (Duchi et al. 2011) without epsilon; while `avoiding`, the accumulator is only read."""

import numpy as np

from tests.reference import Reference


class RegAdagrad(Reference):
    sparse = "rows"
    avoiding = False

    def __init__(self, learning_rate=0.01, initial_accumulator_value=0.1):
        self.learning_rate = learning_rate
        self.initial_accumulator_value = initial_accumulator_value

    def slots(self, x):
        return {"accumulator": np.full_like(x, self.initial_accumulator_value)}

    def update(self, g, x, s, step, path):
        a = s["accumulator"]
        if not self.avoiding:
            a = a + g * g
        return x - self.lr(step) * g * a**-0.5, {"accumulator": a}
