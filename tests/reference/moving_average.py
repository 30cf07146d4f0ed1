"""Moving averages of the variables (Polyak and Juditsky 1992), with TF1's growing decay.

The inner optimizer trains as if alone. A variable without gradient keeps its average as well; in a
variable of rows the whole average moves.
"""

from tests.reference import Reference
from tests.reference.momentum import Momentum


class MovingAverage(Reference):
    def __init__(
        self,
        average_decay=0.9999,
        num_updates=None,
        sequential_update=True,
        inner=Momentum,
        **arguments,
    ):
        self.average_decay, self.num_updates = average_decay, num_updates
        self.inner = inner(**arguments)

    sparse = property(lambda self: self.inner.sparse)
    learning_rate = property(
        lambda self: self.inner.learning_rate,
        lambda self, value: setattr(self.inner, "learning_rate", value),
    )

    def slots(self, x):
        return {"average": x.copy(), **self.inner.slots(x)}

    def step(self, gradient, x, s, step, path=""):
        if gradient is None:
            return x, s
        of_inner = {name: slot for name, slot in s.items() if name != "average"}
        x, inner = self.inner.step(gradient, x, of_inner, step, path)
        d = self.average_decay
        if self.num_updates is not None:
            n = step if self.num_updates is True else self.num_updates
            d = min(d, (1 + n) / (10 + n))
        return x, {**inner, "average": d * s["average"] + (1 - d) * x}
