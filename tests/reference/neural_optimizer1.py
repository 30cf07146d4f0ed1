"""An update found by neural optimizer search (Bello et al. 2017), in RETURNN's version.

Steps are full where average and gradient have the same sign, and small elsewhere.
"""

import numpy as np

from tests.reference import Reference


class NeuralOptimizer1(Reference):
    sparse = "move_rows"

    def __init__(self, learning_rate=0.01, beta_1=0.9, decrease_factor=0.1):
        self.learning_rate, self.beta_1 = learning_rate, beta_1
        self.decrease_factor = decrease_factor

    def slots(self, x):
        return {"m": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        factor = np.where(np.sign(m) == np.sign(g), 1.0, self.decrease_factor)
        return x - self.lr(step) * factor * g, {"m": m}
