"""COCOB-Backprop (Orabona and Tommasi 2017), algorithm 2, with a factor for its steps."""

import numpy as np

from tests.reference import Reference


class COCOB(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=1.0, alpha=100.0):
        self.learning_rate, self.alpha = learning_rate, alpha

    def slots(self, x):
        names = ("gradients_sum", "grad_norm_sum", "reward", "tilde_w")
        return {"largest": np.full_like(x, 1e-8), **{name: np.zeros_like(x) for name in names}}

    def update(self, g, x, s, step, path):
        top = np.where(np.abs(g) > s["largest"], np.abs(g), s["largest"])
        total, sizes = s["gradients_sum"] + g, s["grad_norm_sum"] + np.abs(g)
        reward = np.clip(s["reward"] - g * s["tilde_w"], 0, None)
        moved = -total / top / np.maximum(sizes + top, self.alpha * top) * (reward + top)
        new = {"largest": top, "gradients_sum": total, "grad_norm_sum": sizes, "reward": reward}
        return x + self.lr(step) * (moved - s["tilde_w"]), {**new, "tilde_w": moved}
