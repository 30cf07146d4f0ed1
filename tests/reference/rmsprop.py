"""RMSProp (Tieleman and Hinton 2012; Graves 2013), as TF1 has it: mean squares start at one.

The rate is inside of the momentum, epsilon inside of the root.
"""

import numpy as np

from tests.reference import Reference


class RMSProp(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, rho=0.9, momentum=0.0, epsilon=1e-10, centered=False):
        self.learning_rate, self.rho, self.momentum = learning_rate, rho, momentum
        self.epsilon, self.centered = epsilon, centered

    def slots(self, x):
        slots = {"rms": np.ones_like(x), "momentum": np.zeros_like(x)}
        return {**slots, "mg": np.zeros_like(x)} if self.centered else slots

    def update(self, g, x, s, step, path):
        new = {"rms": s["rms"] * self.rho + g**2 * (1 - self.rho)}
        spread = new["rms"]
        if self.centered:
            new["mg"] = s["mg"] * self.rho + g * (1 - self.rho)
            spread = np.maximum(spread - new["mg"] ** 2, 0)
        move = self.lr(step) * g / np.sqrt(spread + self.epsilon)
        new["momentum"] = s["momentum"] * self.momentum + move
        return x - new["momentum"], new
