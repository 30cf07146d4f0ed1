"""RectifiedAdam (Liu et al. 2020): algorithm 2, with the options of TensorFlow Addons.

With row gradients, moments decay in all rows. Only touched rows of the variable change.
"""

import math

import numpy as np

from tests.reference import Reference


class RectifiedAdam(Reference):
    sparse = "move_rows"
    rectify = True

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-7,
        amsgrad=False,
        weight_decay=0.0,
        sma_threshold=5.0,
        total_steps=0,
        warmup_proportion=0.1,
        min_lr=0.0,
    ):
        self.learning_rate, self.epsilon, self.amsgrad = learning_rate, epsilon, amsgrad
        self.beta_1, self.beta_2, self.weight_decay = beta_1, beta_2, weight_decay
        self.sma_threshold, self.total_steps, self.min_lr = sma_threshold, total_steps, min_lr
        self.warmup_proportion = warmup_proportion

    def slots(self, x):
        names = ("m", "v", "vhat") if self.amsgrad else ("m", "v")
        return {name: np.zeros_like(x) for name in names}

    def rate(self, step):
        lr, top = self.lr(step), self.total_steps * self.warmup_proportion
        if self.total_steps and step <= top:
            return lr * step / top
        if self.total_steps:
            rest = max(self.total_steps - top, 1)
            return lr + (self.min_lr - lr) * min((step - top) / rest, 1)
        return lr

    def factor(self, step):
        """The factor of a divided step, or None where it is not divided."""
        if not self.rectify:
            return 1.0
        power = self.beta_2**step
        limit = (1 + self.beta_2) / (1 - self.beta_2)
        length = limit - 2 * step * power / (1 - power)
        if length < self.sma_threshold:
            return None
        above, below = (length - 4) * (length - 2) / length, (limit - 4) * (limit - 2) / limit
        return math.sqrt(above / below)

    def moments(self, g, s):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        return m, s["v"] + (1 - self.beta_2) * (g * g - s["v"])

    def update(self, g, x, s, step, path):
        return self.moved(x, s, *self.moments(g, s), step)

    def moved(self, x, s, m, v, step):
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = new["vhat"] = np.maximum(s["vhat"], v)
        direction = m / (1 - self.beta_1**step)
        factor = self.factor(step)
        if factor is not None:
            size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
            # With an epsilon of zero, elements that never had a gradient do not change.
            direction = np.divide(factor * direction, size, out=np.zeros_like(x), where=size > 0)
        return x - self.rate(step) * (direction + self.weight_decay * x), new
