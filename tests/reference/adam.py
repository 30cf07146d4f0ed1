"""Adam (Kingma and Ba 2015), the efficient form of section 2: epsilon is the paper's epsilon hat.

The bias corrections are folded into the learning rate, so epsilon is added to the raw root.
"""

import math

import numpy as np

from tests.reference import Reference


class Adam(Reference):
    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, amsgrad=False):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2, self.amsgrad = beta_1, beta_2, amsgrad

    def slots(self, x):
        names = ("m", "v", "vhat") if self.amsgrad else ("m", "v")
        return {name: np.zeros_like(x) for name in names}

    def update(self, g, x, s, step, path):
        t = self.count(step)
        alpha = self.lr(step) * math.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * g
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = new["vhat"] = np.maximum(s["vhat"], v)
        return x - alpha * m / (np.sqrt(v) + self.epsilon), new
