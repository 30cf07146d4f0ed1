"""LaProp (Ziyin, Wang and Ueda 2020), with the learning rate inside of the momentum."""

import numpy as np

from tests.reference import Reference


class LaProp(Reference):
    def __init__(self, learning_rate=4e-4, beta_1=0.9, beta_2=0.999, epsilon=1e-15):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x), "rate": np.zeros((), x.dtype)}

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
        normalized = np.divide(g, size, out=np.zeros_like(g), where=size > 0)
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * lr * normalized
        rate = self.beta_1 * s["rate"] + (1 - self.beta_1) * x.dtype.type(lr)
        return x - m * (lr / rate if rate > 0 else 0), {"m": m, "v": v, "rate": rate}
