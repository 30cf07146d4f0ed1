"""LARS (You, Gitman and Ginsburg 2017), as TF1 has it.

The learning rate is inside of the slot. The trust ratio is one if weights or gradient are all zero.
Variables on the skip list have neither decay nor trust ratio. Row gradients make a plain momentum
step, with the learning rate outside of the slot.
"""

import re

import numpy as np

from tests.reference import Reference


class LARS(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=1.0,
        momentum=0.9,
        weight_decay=1e-4,
        eeta=1e-3,
        epsilon=0.0,
        skip_list=None,
        nesterov=False,
    ):
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov
        self.weight_decay, self.eeta, self.epsilon = weight_decay, eeta, epsilon
        self.skip_list = skip_list

    def slots(self, x):
        return {"momentum": np.zeros_like(x)}

    def skipped(self, path):
        entries = self.skip_list or ()
        return any(e.search(path) if isinstance(e, re.Pattern) else e in path for e in entries)

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        if self.skipped(path):
            h = lr * g
        else:
            x_norm, g_norm = np.sqrt(np.sum(x * x)), np.sqrt(np.sum(g * g))
            ratio = 1.0
            if x_norm > 0 and g_norm > 0:
                ratio = self.eeta * x_norm
                ratio /= g_norm + self.weight_decay * x_norm + self.epsilon
            h = lr * ratio * (g + self.weight_decay * x)
        a = self.momentum * s["momentum"] + h
        return x - (h + self.momentum * a if self.nesterov else a), {"momentum": a}

    def update_rows(self, g, x, s, step, path):
        lr = self.lr(step)
        a = self.momentum * s["momentum"] + g
        move = lr * (g + self.momentum * a) if self.nesterov else lr * a
        return x - move, {"momentum": a}
