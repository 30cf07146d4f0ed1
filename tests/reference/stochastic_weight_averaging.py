"""Means of the weights at equal intervals (Izmailov et al. 2018)."""

import numpy as np

from tests.reference.adam import Adam
from tests.reference.around import Around


class StochasticWeightAveraging(Around):
    def __init__(self, start_averaging=0, average_period=10, **arguments):
        super().__init__(inner=Adam, **arguments)
        self.start_averaging, self.average_period = start_averaging, average_period

    def own_slots(self, x):
        return {"average": np.zeros_like(x), "count": np.zeros((), x.dtype)}

    def after(self, x, s, rows, step, path):
        since = step - 1 - self.start_averaging
        if since < 0 or since % self.average_period:
            return x, s
        n = s["count"]
        return x, {"average": (n * s["average"] + x) / (n + 1), "count": n + 1}
