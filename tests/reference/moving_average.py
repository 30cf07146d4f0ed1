"""Moving averages of the variables (Polyak and Juditsky 1992), with TF1's growing decay.

The optimizer inside trains as without the wrapper. A variable without gradient keeps its average.
With a row gradient, the average changes in all rows.
"""

from tests.reference.around import Around


class MovingAverage(Around):
    def __init__(
        self,
        average_decay=0.9999,
        num_updates=None,
        sequential_update=True,
        start_step=0,
        dynamic_decay=False,
        **arguments,
    ):
        super().__init__(**arguments)
        self.average_decay, self.num_updates = average_decay, num_updates
        self.start_step, self.dynamic_decay = start_step, dynamic_decay

    def own_slots(self, x):
        return {"average": x.copy()}

    def after(self, x, s, rows, step, path):
        d = self.average_decay
        if self.num_updates is not None:
            n = step if self.num_updates is True else self.num_updates
            d = min(d, (1 + n) / (10 + n))
        since = step - 1 - self.start_step
        if self.dynamic_decay:
            d = min(d, (1 + since) / (10 + since))
        if since < 0:
            d = 0
        return x, {"average": d * s["average"] + (1 - d) * x}
