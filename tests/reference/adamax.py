"""AdaMax (Kingma and Ba 2015, section 7.1): Adam in the infinity norm, with TF1's epsilon."""

import numpy as np

from tests.reference import Reference


class AdaMax(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = np.maximum(self.beta_2 * s["v"], np.abs(g))
        unbiased = m / (1 - self.beta_1**step)
        return x - self.lr(step) * unbiased / (v + self.epsilon), {"m": m, "v": v}
