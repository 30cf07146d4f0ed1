"""Schedule-Free (Defazio et al. 2024) around another optimizer."""

import numpy as np

from tests.reference.adam import Adam
from tests.reference.around import Around


class ScheduleFree(Around):
    moves = "z"

    def __init__(
        self, momentum=0.9, weight_decay_at_y=0.0, r=0.0, weight_lr_power=2.0, **arguments
    ):
        super().__init__(inner=Adam, **arguments)
        self.beta, self.decay, self.r = momentum, weight_decay_at_y, r
        self.power = weight_lr_power

    def own_slots(self, x):
        zero = np.zeros((), x.dtype)
        return {"z": x.copy(), "x": x.copy(), "weight_sum": zero, "largest_rate": zero}

    def step(self, gradient, x, s, step, path=""):
        if gradient is None:
            return x, s
        names, lr = self.own_slots(x), self.lr(step)
        of_inner = {name: slot for name, slot in s.items() if name not in names}
        z = s["z"] - lr * self.decay * x
        z, of_inner = self.inner.step(gradient, z, of_inner, step, path)
        rate = max(lr, s["largest_rate"])
        weight = step**self.r * rate**self.power
        total = s["weight_sum"] + weight
        part = weight / total if total else 0.0
        mean = (1 - part) * s["x"] + part * z
        own = {"z": z, "x": mean, "weight_sum": total, "largest_rate": rate}
        own = {name: np.asarray(value, x.dtype) for name, value in own.items()}
        return self.beta * mean + (1 - self.beta) * z, {**own, **of_inner}
