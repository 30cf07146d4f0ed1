"""Adan (Xie et al. 2022), with decay rates instead of the paper's weights."""

import numpy as np

from tests.reference import Reference


class Adan(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.98,
        beta_2=0.92,
        beta_3=0.99,
        epsilon=1e-8,
        weight_decay=0.0,
        cautious=False,
    ):
        self.learning_rate, self.epsilon, self.weight_decay = learning_rate, epsilon, weight_decay
        self.beta_1, self.beta_2, self.beta_3 = beta_1, beta_2, beta_3
        self.cautious = cautious

    def slots(self, x):
        return {name: np.zeros_like(x) for name in ("m", "d", "n", "last")}

    def update(self, g, x, s, step, path):
        b1, b2, b3 = self.beta_1, self.beta_2, self.beta_3
        difference = g - s["last"] if step > 1 else np.zeros_like(g)
        m = b1 * s["m"] + (1 - b1) * g
        d = b2 * s["d"] + (1 - b2) * difference
        n = b3 * s["n"] + (1 - b3) * (g + b2 * difference) ** 2
        kept = m
        if self.cautious:
            agrees = m * g > 0
            kept = np.where(agrees, m, 0) / max(np.sum(agrees) / max(m.size, 1), 1e-3)
        direction = kept / (1 - b1**step) + b2 * d / (1 - b2**step)
        size = np.sqrt(n / (1 - b3**step)) + self.epsilon
        lr = self.lr(step)
        new = (x - lr * direction / size) / (1 + lr * self.weight_decay)
        return new, {"m": m, "d": d, "n": n, "last": g}
