"""Adafactor (Shazeer and Stern 2018), with the learning rate as a limit of the relative step."""

import numpy as np

from tests.reference import Reference
from tests.reference.came import rooted


class Adafactor(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_2_decay=-0.8,
        epsilon_1=1e-30,
        epsilon_2=1e-3,
        clip_threshold=1.0,
        relative_step=True,
        scale_parameter=True,
        momentum=None,
        min_dim_size_to_factor=128,
        beta_2_cap=1.0,
    ):
        self.learning_rate, self.beta_2_decay = learning_rate, beta_2_decay
        self.epsilon_1, self.epsilon_2, self.clip_threshold = epsilon_1, epsilon_2, clip_threshold
        self.relative_step, self.scale_parameter = relative_step, scale_parameter
        self.momentum, self.min_dim_size_to_factor = momentum, min_dim_size_to_factor
        self.beta_2_cap = beta_2_cap

    def slots(self, x):
        slots = {"v": np.zeros_like(x)}
        if x.ndim > 1 and min(x.shape[-2:]) >= self.min_dim_size_to_factor:
            slots = {"row": np.zeros_like(x.mean(-1)), "col": np.zeros_like(x.mean(-2))}
        return slots if self.momentum is None else {**slots, "m": np.zeros_like(x)}

    def update(self, g, x, s, step, path):
        beta = min(1 - step**self.beta_2_decay, self.beta_2_cap)
        square = g * g + x.dtype.type(self.epsilon_1)
        means = {"v": square}
        if "row" in s:
            means = {"row": square.mean(-1), "col": square.mean(-2)}
        new = {name: beta * s[name] + (1 - beta) * mean for name, mean in means.items()}
        u = g / (np.sqrt(new["v"]) if "v" in s else rooted(new["row"], new["col"]))
        u = u / max(1.0, np.sqrt(np.mean(u * u)) / self.clip_threshold)
        rate = self.lr(step)
        if self.relative_step:
            rate = min(rate, step**-0.5)
        if self.scale_parameter:
            rate = rate * max(self.epsilon_2, np.sqrt(np.mean(x * x)))
        move = rate * u
        if self.momentum is not None:
            new["m"] = move = self.momentum * s["m"] + (1 - self.momentum) * move
        return x - move, new
