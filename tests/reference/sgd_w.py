"""SGDW (Loshchilov and Hutter 2019), with the learning rate inside of the velocity."""

import numpy as np

from tests.reference import Reference
from tests.reference.decoupled_weight_decay import DecoupledWeightDecay


class AccumulatedSteps(Reference):
    sparse = "rows"

    def __init__(self, learning_rate=0.001, momentum=0.0, nesterov=False):
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov

    def slots(self, x):
        return {"momentum": np.zeros_like(x)} if self.momentum else {}

    def update(self, g, x, s, step, path):
        if not self.momentum:
            return x - self.lr(step) * g, {}
        v = self.momentum * s["momentum"] - self.lr(step) * g
        ahead = self.momentum * v - self.lr(step) * g
        return x + (ahead if self.nesterov else v), {"momentum": v}


class SGDW(DecoupledWeightDecay):
    def __init__(
        self,
        weight_decay,
        learning_rate=0.001,
        momentum=0.0,
        nesterov=False,
        decay_variables=None,
        scale_by_learning_rate=False,
    ):
        super().__init__(
            weight_decay,
            decay_variables,
            scale_by_learning_rate,
            inner=AccumulatedSteps,
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
        )
