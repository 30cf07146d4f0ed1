"""ADOPT (Taniguchi et al. 2024): the version with clipping, and without."""

import numpy as np

from tests.reference import Reference


class ADOPT(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.9999,
        epsilon=1e-6,
        clip_exponent=0.25,
        clipping=True,
        nesterov=False,
    ):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon, self.nesterov = epsilon, nesterov
        self.clip_exponent, self.clipping = clip_exponent, clipping

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": -np.ones_like(x)}

    def update(self, g, x, s, step, path):
        if step == 1 or (s["v"] < 0).any():  # slots of 8 bits have no negative v
            return x, {"m": s["m"], "v": g * g}
        u = g / np.maximum(np.sqrt(s["v"]), self.epsilon)
        if self.clipping:
            limit = (step - 1) ** self.clip_exponent
            u = np.clip(u, -limit, limit)
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * u
        ahead = self.beta_1 * m + (1 - self.beta_1) * u if self.nesterov else m
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        return x - self.lr(step) * ahead, {"m": m, "v": v}
