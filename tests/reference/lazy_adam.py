"""LazyAdam: Adam that changes nothing in rows that a row gradient does not name.

The exponents of the bias corrections count steps, not visits to a row. With `catch_up`, the moments
of a row are those that Adam would have after zero gradients in the steps that the row missed: they
are computed here one missed step after the other.
"""

import math

import numpy as np

from tests.reference import Reference


class LazyAdam(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        amsgrad=False,
        catch_up=False,
    ):
        self.learning_rate, self.epsilon, self.amsgrad = learning_rate, epsilon, amsgrad
        self.beta_1, self.beta_2, self.catch_up = beta_1, beta_2, catch_up

    def slots(self, x):
        names = ("m", "v", "vhat") if self.amsgrad else ("m", "v")
        s = {name: np.zeros_like(x) for name in names}
        if self.catch_up and x.ndim:
            s["last"] = np.zeros(len(x), "int32")
        return s

    def update(self, g, x, s, step, path):
        rate = self.lr(step) * math.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        s = dict(s)
        for row, last in enumerate(s.get("last", ())):
            for _ in range(last + 1, step):
                s["m"], s["v"] = s["m"].copy(), s["v"].copy()
                s["m"][row] *= self.beta_1
                s["v"][row] *= self.beta_2
        last = {"last": np.full_like(s["last"], step)} if "last" in s else {}
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = s["v"] + (1 - self.beta_2) * (g * g - s["v"])
        new = {"m": m, "v": v, **last}
        if self.amsgrad:
            v = new["vhat"] = np.maximum(s["vhat"], v)
        return x - rate * m / (np.sqrt(v) + self.epsilon), new

    def update_rows(self, g, x, s, step, path):
        # Rows have no largest moment.
        rows = LazyAdam(self.learning_rate, self.beta_1, self.beta_2, self.epsilon)
        x, new = rows.update(g, x, s, step, path)
        return x, {**s, **new}
