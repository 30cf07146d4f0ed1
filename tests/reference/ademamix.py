"""AdEMAMix (Pagliardini, Ablin and Grangier 2024), with the paper's schedulers, without decay."""

import math

import numpy as np

from tests.reference import Reference


class AdEMAMix(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        beta_3=0.9999,
        alpha=5.0,
        warmup_steps=None,
        epsilon_root=0.0,
    ):
        self.learning_rate, self.epsilon, self.epsilon_root = learning_rate, epsilon, epsilon_root
        self.beta_1, self.beta_2, self.beta_3 = beta_1, beta_2, beta_3
        self.alpha, self.warmup_steps = alpha, warmup_steps

    def slots(self, x):
        return {name: np.zeros_like(x) for name in ("m", "v", "m_slow")}

    def slow(self, step):
        """Return weight and decay of the slow average. The decay's half-life grows linearly."""
        if self.warmup_steps is None or step >= self.warmup_steps:
            return self.alpha, self.beta_3
        part = step / self.warmup_steps
        start, end = (math.log(0.5) / math.log(beta) for beta in (self.beta_1, self.beta_3))
        return part * self.alpha, 0.5 ** (1 / (start + part * (end - start)))

    def update(self, g, x, s, step, path):
        alpha, beta_3 = self.slow(step)
        m = self.beta_1 * s["m"] + (1 - self.beta_1) * g
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * g * g
        m_slow = beta_3 * s["m_slow"] + (1 - beta_3) * g
        size = np.sqrt(v / (1 - self.beta_2**step) + self.epsilon_root) + self.epsilon
        direction = (m / (1 - self.beta_1**step) + alpha * m_slow) / size
        return x - self.lr(step) * direction, {"m": m, "v": v, "m_slow": m_slow}
