"""LazyAdam with the powers of its decays taken from a global step.

`global_step` is its value before the step. If it is None, the optimizer counts its own steps.
"""

import math

import numpy as np

from tests.reference import Reference


class LazyAdamGS(Reference):
    sparse = "rows"

    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, global_step=None
    ):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2, self.global_step = beta_1, beta_2, global_step

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        t = self.count(step)
        m = s["m"] * self.beta_1 + g * (1 - self.beta_1)
        v = s["v"] * self.beta_2 + g**2 * (1 - self.beta_2)
        rate = self.lr(step) / (1 - self.beta_1**t) * math.sqrt(1 - self.beta_2**t)
        return x - rate * m / (np.sqrt(v) + self.epsilon), {"m": m, "v": v}
