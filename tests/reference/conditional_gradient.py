"""The conditional gradient method (Frank and Wolfe 1956) on balls of two norms (Jaggi 2013)."""

import numpy as np

from tests.reference import Reference


class ConditionalGradient(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.1, lambda_=0.01, epsilon=1e-7, ord="fro"):
        self.learning_rate, self.lambda_ = learning_rate, lambda_
        self.epsilon, self.ord = epsilon, ord

    def slots(self, x):
        return {}

    def direction(self, g):
        if not g.any():
            return np.zeros_like(g)
        if self.ord == "fro":
            return g / (np.linalg.norm(g.ravel()) + self.epsilon)
        u, _, v = np.linalg.svd(g.reshape(-1, g.shape[-1] if g.ndim > 1 else 1))
        return np.outer(u[:, 0], v[0]).reshape(g.shape)

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        return lr * x - (1 - lr) * self.lambda_ * self.direction(g), {}
