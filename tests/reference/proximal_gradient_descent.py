"""Forward-backward splitting (Duchi and Singer 2009) with a penalty l1 |x| + l2 x^2 / 2."""

import numpy as np

from tests.reference import Reference


def prox(u, rate, l1, l2):
    """The minimum over x of |x - u|^2 / 2 + rate * (l1 |x| + l2 x^2 / 2)."""
    below, above = (u + rate * l1) / (1 + rate * l2), (u - rate * l1) / (1 + rate * l2)
    return np.where(above > 0, above, np.where(below < 0, below, 0.0))


class ProximalGradientDescent(Reference):
    sparse = "rows"

    def __init__(
        self, learning_rate=0.01, l1_regularization_strength=0.0, l2_regularization_strength=0.0
    ):
        self.learning_rate = learning_rate
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength

    def slots(self, x):
        return {}

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return prox(x - lr * g, lr, l1, l2), {}
