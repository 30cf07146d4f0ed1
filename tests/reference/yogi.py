"""Yogi (Zaheer et al. 2018), with the proximal step of TensorFlow Addons.

With row gradients, the first moment decays in all rows. A gradient of zero does not change the
second moment.
"""

import math

import numpy as np

from tests.reference import Reference
from tests.reference.proximal_gradient_descent import prox


class Yogi(Reference):
    sparse = "move_rows"

    def __init__(
        self,
        learning_rate=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-3,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        initial_accumulator_value=1e-6,
        activation="sign",
    ):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon, self.initial, self.activation = epsilon, initial_accumulator_value, activation
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength

    def slots(self, x):
        v = {"v": np.full_like(x, self.initial)}
        return {"m": np.zeros_like(x), **v} if self.beta_1 else v

    def update(self, g, x, s, step, path):
        over = g * g - s["v"]
        sign = np.sign(over) if self.activation == "sign" else np.tanh(10 * over)
        new = {"v": s["v"] + (1 - self.beta_2) * sign * g * g}
        if self.beta_1:
            new["m"] = s["m"] + (1 - self.beta_1) * (g - s["m"])
        rate = self.lr(step) * math.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        size = np.sqrt(new["v"]) + self.epsilon
        rates = np.divide(rate, size, out=np.zeros_like(x), where=size > 0)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return prox(x - rates * new.get("m", g), rates, l1, l2), new
