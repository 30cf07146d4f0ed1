"""Gradient descent (Robbins and Monro 1951)."""

from tests.reference import Reference


class GradientDescent(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.01):
        self.learning_rate = learning_rate

    def slots(self, x):
        return {}

    def update(self, g, x, s, step, path):
        return x - self.lr(step) * g, {}
