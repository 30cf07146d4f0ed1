"""Forward-backward splitting (Duchi and Singer 2009) with Adagrad's step sizes."""

import numpy as np

from tests.reference import Reference
from tests.reference.proximal_gradient_descent import prox


class ProximalAdagrad(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=0.001,
        initial_accumulator_value=0.1,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
    ):
        self.learning_rate, self.initial = learning_rate, initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength

    def slots(self, x):
        return {"accumulator": np.full_like(x, self.initial)}

    def update(self, g, x, s, step, path):
        total = s["accumulator"] + g * g
        rates = self.lr(step) / np.sqrt(total)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return prox(x - rates * g, rates, l1, l2), {"accumulator": total}
