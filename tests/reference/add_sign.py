"""AddSign (Bello et al. 2017), with the average of the gradient updated first."""

import numpy as np

from tests.reference import Reference


class AddSign(Reference):
    sparse = "move_rows"

    def __init__(self, learning_rate=0.1, alpha=1.0, beta=0.9, sign_decay=None):
        self.learning_rate, self.alpha, self.beta = learning_rate, alpha, beta
        self.sign_decay = 1.0 if sign_decay is None else sign_decay

    def slots(self, x):
        return {"m": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        m = self.beta * s["m"] + (1 - self.beta) * g
        factor = self.alpha + self.sign_decay * np.sign(g) * np.sign(m)
        return x - self.lr(step) * factor * g, {"m": m}
