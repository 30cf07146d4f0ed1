"""AdamW with the update clipping of Adafactor (Wortsman et al. 2023), without weight decay."""

import numpy as np

from tests.reference import Reference


class StableAdamW(Reference):
    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, clip_threshold=1.0
    ):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.clip_threshold = clip_threshold
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        if not x.size:
            return x, s
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * g
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
        rms = np.sqrt(np.mean((g / size) ** 2))
        rate = self.lr(step) / max(1.0, rms / self.clip_threshold)
        return x - rate * m / (1 - self.beta_1**step) / size, {"m": m, "v": v}
