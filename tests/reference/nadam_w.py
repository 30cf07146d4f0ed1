"""NadamW (Dozat 2016, with a constant momentum), without weight decay."""

import numpy as np

from tests.reference import Reference


class NadamW(Reference):
    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, epsilon_root=0.0
    ):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon, self.epsilon_root = epsilon, epsilon_root

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        b1, b2 = self.beta_1, self.beta_2
        m = b1 * s["m"] + (1 - b1) * g
        v = b2 * s["v"] + (1 - b2) * g * g
        m_hat = b1 * m / (1 - b1 ** (step + 1)) + (1 - b1) * g / (1 - b1**step)
        v_hat = v / (1 - b2**step)
        size = np.sqrt(v_hat + self.epsilon_root) + self.epsilon
        return x - self.lr(step) * m_hat / size, {"m": m, "v": v}
