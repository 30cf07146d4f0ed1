"""Lookahead (Zhang et al. 2019): k steps forward, 1 step back."""

from tests.reference.adam import Adam
from tests.reference.around import Around


class Lookahead(Around):
    def __init__(self, sync_period=6, slow_step_size=0.5, **arguments):
        super().__init__(inner=Adam, **arguments)
        self.sync_period, self.slow_step_size = sync_period, slow_step_size

    def own_slots(self, x):
        return {"slow": x.copy()}

    def after(self, x, s, rows, step, path):
        if step % self.sync_period:
            return x, s
        slow = (1 - self.slow_step_size) * s["slow"] + self.slow_step_size * x
        return slow, {"slow": slow}
