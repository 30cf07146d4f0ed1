"""MARS-approx with AdamW or Lion (Yuan et al. 2024), without weight decay."""

import numpy as np

from tests.reference import Reference


class MARS(Reference):
    def __init__(
        self,
        learning_rate=0.003,
        beta_1=0.9,
        beta_2=0.99,
        epsilon=1e-8,
        gamma=0.025,
        optimize_1d=False,
        form="adam",
    ):
        self.learning_rate, self.epsilon, self.gamma = learning_rate, epsilon, gamma
        self.beta_1, self.beta_2, self.optimize_1d = beta_1, beta_2, optimize_1d
        self.form = form

    def slots(self, x):
        names = ["m", "v"]
        if x.ndim > 1 or self.optimize_1d:
            names = ["m", "last"] if self.form == "lion" else ["m", "v", "last"]
        return {name: np.zeros_like(x) for name in names}

    def update(self, g, x, s, step, path):
        c, last = g, {}
        if "last" in s:
            last = {"last": g}
            if step > 1:
                c = g + self.gamma * self.beta_1 / (1 - self.beta_1) * (g - s["last"])
            c = c / max(1.0, np.sqrt(np.sum(c * c)))
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * c
        if "v" not in s:
            return x - self.lr(step) * np.sign(m), {"m": m, **last}
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * c * c
        size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
        direction = m / (1 - self.beta_1**step) / size
        return x - self.lr(step) * direction, {"m": m, "v": v, **last}
