"""Momentum (Polyak 1964; Nesterov 1983 in the form of Sutskever et al. 2013)."""

import numpy as np

from tests.reference import Reference


class Momentum(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.01, momentum=0.9, nesterov=False):
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov

    def slots(self, x):
        return {"momentum": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        a = self.momentum * s["momentum"] + g
        move = lr * g + lr * self.momentum * a if self.nesterov else lr * a
        return x - move, {"momentum": a}
