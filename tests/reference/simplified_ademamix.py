"""Simplified AdEMAMix (Morwani et al. 2025), without weight decay."""

import numpy as np

from tests.reference import Reference


class SimplifiedAdEMAMix(Reference):
    def __init__(
        self,
        learning_rate=1e-5,
        beta_1=0.99,
        beta_2=0.95,
        epsilon=1e-8,
        alpha=0.0,
        epsilon_root=0.0,
    ):
        self.learning_rate, self.epsilon, self.epsilon_root = learning_rate, epsilon, epsilon_root
        self.beta_1, self.beta_2, self.alpha = beta_1, beta_2, alpha

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        m = self.beta_1 * s["m"] + g
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        size = np.sqrt(v / (1 - self.beta_2**step) + self.epsilon_root) + self.epsilon
        return x - self.lr(step) * (m + self.alpha * g) / size, {"m": m, "v": v}
