"""Schedule-Free AdamW (Defazio et al. 2024)."""

import numpy as np

from tests.reference.schedule_free_sgd import ScheduleFreeSGD


class ScheduleFreeAdamW(ScheduleFreeSGD):
    def __init__(
        self,
        learning_rate=0.0025,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        weight_decay=0.0,
        r=0.0,
        weight_lr_power=2.0,
    ):
        super().__init__(
            learning_rate, weight_decay=weight_decay, r=r, weight_lr_power=weight_lr_power
        )
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def slots(self, x):
        return {"v": np.zeros_like(x), **super().slots(x)}

    def update(self, g, x, s, step, path):
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        size = np.sqrt(v / (1 - self.beta_2**step)) + self.epsilon
        normalized = np.divide(g, size, out=np.zeros_like(g), where=size > 0)
        y, new = self.moved(normalized, self.beta_1, x, s, step)
        return y, {"v": v, **new}
