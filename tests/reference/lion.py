"""Lion (Chen et al. 2023), without weight decay."""

import numpy as np

from tests.reference import Reference


class Lion(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=1e-4, beta_1=0.9, beta_2=0.99):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        direction = np.sign(s["m"] + (1 - self.beta_1) * (g - s["m"]))
        return x - self.lr(step) * direction, {"m": s["m"] + (1 - self.beta_2) * (g - s["m"])}
