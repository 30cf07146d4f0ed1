"""AMSGrad (Reddi, Kale and Kumar 2018, algorithm 2), as RETURNN has it: no bias correction.

Elements do not change while both the largest second moment and epsilon are zero.
"""

import math

import numpy as np

from tests.reference import Reference


class AMSGrad(Reference):
    def __init__(self, learning_rate=0.001, decay=False, beta_1=0.9, beta_2=0.99, epsilon=0.0):
        self.learning_rate, self.decay, self.epsilon = learning_rate, decay, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, x):
        return {name: np.zeros_like(x) for name in ("m", "v", "v_hat")}

    def update(self, g, x, s, step, path):
        rate = self.lr(step) * (1 / math.sqrt(step) if self.decay else 1)
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = s["v"] + (1 - self.beta_2) * (g * g - s["v"])
        v_hat = np.maximum(s["v_hat"], v)
        size = self.epsilon + np.sqrt(v_hat)
        move = np.divide(m, size, out=np.zeros_like(m), where=size > 0)
        return x - rate * move, {"m": m, "v": v, "v_hat": v_hat}
