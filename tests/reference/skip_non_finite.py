"""SkipNonFinite: no step if a gradient is not finite. Skipped steps are not counted."""

import numpy as np

from tests.reference.around import Around


class SkipNonFinite(Around):
    def __init__(self, max_consecutive=None, **arguments):
        super().__init__(**arguments)
        self.skipped = 0

    def advance(self, gradients, x, s, step):
        values = [g[0] if isinstance(g, tuple) else g for g in gradients.values()]
        if not all(np.all(np.isfinite(value)) for value in values):
            self.skipped += 1
            return x, s
        return super().advance(gradients, x, s, step - self.skipped)
