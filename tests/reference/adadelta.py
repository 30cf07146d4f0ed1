"""Adadelta (Zeiler 2012), algorithm 1, with a learning rate before the step."""

import numpy as np

from tests.reference import Reference


class Adadelta(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, rho=0.95, epsilon=1e-8):
        self.learning_rate, self.rho, self.epsilon = learning_rate, rho, epsilon

    def slots(self, x):
        return {"accum": np.zeros_like(x), "accum_update": np.zeros_like(x)}

    def average(self, old, new):
        return self.rho * old + (1 - self.rho) * new**2

    def update(self, g, x, s, step, path):
        squares = self.average(s["accum"], g)
        delta = -np.sqrt((s["accum_update"] + self.epsilon) / (squares + self.epsilon)) * g
        new = {"accum": squares, "accum_update": self.average(s["accum_update"], delta)}
        return x + self.lr(step) * delta, new
