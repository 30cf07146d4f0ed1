"""Gradient descent, element by element shortened where the gradient varies more than usual."""

import numpy as np

from tests.reference import Reference


class GradVarianceScaled(Reference):
    sparse = "move_rows"

    def __init__(self, learning_rate=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        variance = (g - m) ** 2
        v = s["v"] + (1 - self.beta_2) * (variance - s["v"])
        usual = np.ones_like(v)
        np.divide(v, variance + self.epsilon, out=usual, where=v < variance + self.epsilon)
        return x - self.lr(step) * g * usual, {"m": m, "v": v}

    def update_moving(self, g, x, s, step, path, rows):
        # In rows without gradient, the mean variance only decays.
        x, new = self.update(g, x, s, step, path)
        v = self.beta_2 * s["v"]
        v[rows] = new["v"][rows]
        return x, {"m": new["m"], "v": v}
