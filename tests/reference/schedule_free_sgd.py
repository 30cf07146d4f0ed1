"""Schedule-Free SGD (Defazio et al. 2024)."""

import numpy as np

from tests.reference import Reference


class ScheduleFreeSGD(Reference):
    def __init__(
        self, learning_rate=1.0, momentum=0.9, weight_decay=0.0, r=0.0, weight_lr_power=2.0
    ):
        self.learning_rate, self.momentum, self.weight_decay = learning_rate, momentum, weight_decay
        self.r, self.weight_lr_power = r, weight_lr_power

    def slots(self, x):
        names = ("share", "last_momentum", "weight_sum", "largest_rate")
        numbers = dict.fromkeys(names, np.zeros((), x.dtype))
        return {"lead": np.zeros_like(x), **numbers}

    def update(self, g, x, s, step, path):
        return self.moved(g, self.momentum, x, s, step)

    def moved(self, direction, momentum, y, s, step):
        """Find x and z from what is kept, and take the step of the paper."""
        lr = self.lr(step)
        largest = max(lr, s["largest_rate"])
        weight = step**self.r * largest**self.weight_lr_power
        total = s["weight_sum"] + weight
        c = weight / total if total else 0.0
        z_less_x = (1 - s["share"]) * s["lead"]
        old_x = y - (1 - s["last_momentum"]) * z_less_x
        z = old_x + z_less_x - lr * (direction + self.weight_decay * y)
        x = (1 - c) * old_x + c * z
        new = {"lead": z - old_x, "share": c, "last_momentum": momentum}
        new |= {"weight_sum": total, "largest_rate": largest}
        new = {name: np.asarray(value, y.dtype) for name, value in new.items()}
        return momentum * x + (1 - momentum) * z, new
