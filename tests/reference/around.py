"""The base class of references of wrappers: it makes steps of the reference inside."""

from tests.reference import Reference
from tests.reference.momentum import Momentum


class Around(Reference):
    """Calls `before`, the step of the reference inside, and `after`, for each variable.

    `rows` are the touched rows, or None for all.
    """

    def __init__(self, inner=Momentum, **arguments):
        self.inner = inner(**arguments)

    sparse = property(lambda self: self.inner.sparse)
    learning_rate = property(
        lambda self: self.inner.learning_rate,
        lambda self, value: setattr(self.inner, "learning_rate", value),
    )

    def own_slots(self, x):
        return {}

    def slots(self, x):
        return {**self.own_slots(x), **self.inner.slots(x)}

    def before(self, x, rows, step, path):
        return x

    def after(self, x, s, rows, step, path):
        return x, s

    def step(self, gradient, x, s, step, path=""):
        if gradient is None:
            return x, s
        rows = None
        if isinstance(gradient, tuple):
            rows = sorted({int(index) for index in gradient[1]})
        names = self.own_slots(x)
        own = {name: s[name] for name in names}
        of_inner = {name: slot for name, slot in s.items() if name not in names}
        x = self.before(x, rows, step, path)
        x, of_inner = self.inner.step(gradient, x, of_inner, step, path)
        x, own = self.after(x, own, rows, step, path)
        return x, {**own, **of_inner}
