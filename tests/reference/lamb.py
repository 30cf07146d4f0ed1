"""LAMB (You et al. 2020): algorithm 2 with the decay inside of the trust ratio."""

import re

import numpy as np

from tests.reference import Reference


class LAMB(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.0,
        exclude_from_layer_adaptation=None,
        axis=None,
    ):
        self.learning_rate, self.epsilon, self.weight_decay = learning_rate, epsilon, weight_decay
        self.beta_1, self.beta_2, self.axis = beta_1, beta_2, axis
        self.excluded = exclude_from_layer_adaptation or []

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def ratio(self, x, u):
        axis = self.axis if self.axis is None or self.axis < x.ndim else None
        both = [np.sqrt(np.sum(a * a, axis=axis, keepdims=True)) for a in (x, u)]
        ratio = np.ones_like(both[0])
        np.divide(*both, out=ratio, where=(both[0] > 0) & (both[1] > 0))
        return ratio

    def update(self, g, x, s, step, path):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = s["v"] + (1 - self.beta_2) * (g * g - s["v"])
        size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
        u = np.divide(m / (1 - self.beta_1**step), size, out=np.zeros_like(x), where=size > 0)
        u = u + self.weight_decay * x
        if not any(re.search(pattern, path) for pattern in self.excluded):
            u = np.reshape(self.ratio(x, u) * u, x.shape)
        return x - self.lr(step) * u, {"m": m, "v": v}
