"""FTRL-Proximal (McMahan et al. 2013, algorithm 1 with beta = 0), with TF1's shrinkage and power.

TF1 puts the paper's lambda_2 twice into the denominator; the sum of squares starts above zero.
A learning rate of zero, for which there is no formula, changes nothing.
"""

import numpy as np

from tests.reference import Reference


class Ftrl(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=0.001,
        learning_rate_power=-0.5,
        initial_accumulator_value=0.1,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        l2_shrinkage_regularization_strength=0.0,
    ):
        self.learning_rate, self.learning_rate_power = learning_rate, learning_rate_power
        self.initial = initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength

    def slots(self, x):
        return {"accum": np.full_like(x, self.initial), "linear": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        lr, exponent = self.lr(step), -self.learning_rate_power
        if lr == 0:
            return x, s
        n, l1 = s["accum"] + g * g, self.l1_regularization_strength
        sigma = (n**exponent - s["accum"] ** exponent) / lr
        z = s["linear"] + g + 2 * self.l2_shrinkage_regularization_strength * x - sigma * x
        denominator = n**exponent / lr + 2 * self.l2_regularization_strength
        alive = (np.abs(z) > l1) & (denominator > 0)
        new = np.zeros_like(x)
        np.divide(l1 * np.sign(z) - z, denominator, out=new, where=alive)
        return new, {"accum": n, "linear": z}
