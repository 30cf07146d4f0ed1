"""LazyAdam: Adam whose moments and weights rest in the rows that a row gradient does not name.

The exponents of the bias corrections count steps, not visits to a row.
"""

import math

import numpy as np

from tests.reference import Reference


class LazyAdam(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        rate = self.lr(step) * math.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = s["v"] + (1 - self.beta_2) * (g * g - s["v"])
        return x - rate * m / (np.sqrt(v) + self.epsilon), {"m": m, "v": v}
