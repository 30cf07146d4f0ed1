"""Adagrad by dual averaging (Duchi, Hazan and Singer 2011, section 5; Xiao 2010), as TF1 has it."""

import numpy as np

from tests.reference import Reference


class AdagradDA(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=0.1,
        global_step=None,
        initial_gradient_squared_accumulator_value=0.1,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
    ):
        self.learning_rate, self.global_step = learning_rate, global_step
        self.initial = initial_gradient_squared_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength

    def slots(self, x):
        squares = np.full_like(x, self.initial)
        return {"gradient_accumulator": np.zeros_like(x), "gradient_squared_accumulator": squares}

    def update(self, g, x, s, step, path):
        lr = self.lr(step)
        dual = s["gradient_accumulator"] + g
        squares = s["gradient_squared_accumulator"] + g**2
        count = self.count(step)
        shrunk = np.clip(np.abs(dual) - count * self.l1_regularization_strength, 0, None)
        scale = np.sqrt(squares) / lr + count * self.l2_regularization_strength
        new = {"gradient_accumulator": dual, "gradient_squared_accumulator": squares}
        return np.where(dual > 0, -shrunk, shrunk) / scale, new
