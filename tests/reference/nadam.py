"""Nadam (Dozat 2016) with a constant momentum and Adam's bias corrections, as in TF1."""

import math

import numpy as np

from tests.reference import Reference


class Nadam(Reference):
    sparse = "move_rows"

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {"m": np.zeros_like(x), "v": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        rate = self.lr(step) * math.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * g
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        m_bar = self.beta_1 * m + (1 - self.beta_1) * g
        return x - rate * m_bar / (np.sqrt(v) + self.epsilon), {"m": m, "v": v}
