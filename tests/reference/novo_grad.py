"""NovoGrad (Ginsburg et al. 2019), as in TensorFlow Addons: the slot is the last step."""

import numpy as np

from tests.reference import Reference


class NovoGrad(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-7,
        weight_decay=0.0,
        grad_averaging=False,
        amsgrad=False,
    ):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon, self.weight_decay = epsilon, weight_decay
        self.grad_averaging, self.amsgrad = grad_averaging, amsgrad

    def slots(self, x):
        numbers = ("v", "vhat") if self.amsgrad else ("v",)
        return {"m": np.zeros_like(x), **{name: np.zeros((), x.dtype) for name in numbers}}

    def update(self, g, x, s, step, path):
        square = np.sum(g * g)
        v = square if step == 1 else s["v"] + (1 - self.beta_2) * (square - s["v"])
        new = {"v": np.asarray(v, x.dtype)}
        if self.amsgrad:
            v = new["vhat"] = np.maximum(s["vhat"], new["v"])
        size = np.sqrt(v) + self.epsilon
        h = (g / size if size > 0 else 0 * g) + self.weight_decay * x
        if self.grad_averaging and step > 1:
            h = (1 - self.beta_1) * h
        m = self.beta_1 * s["m"] - self.lr(step) * h
        return x + m, {"m": m, **new}
