"""Cautious: only elements step whose step is against the gradient (Liang et al. 2024; timm)."""

import numpy as np

from tests.reference import dense
from tests.reference.adam import Adam
from tests.reference.around import Around


class Cautious(Around):
    def __init__(self, min_mean=1e-3, **arguments):
        super().__init__(inner=Adam, **arguments)
        self.min_mean = min_mean

    def step(self, gradient, x, s, step, path=""):
        new, s = self.inner.step(gradient, x, s, step, path)
        if gradient is None:
            return x, s
        g, old = dense(gradient, x), self.undecayed.get(path, x)
        moved = new - old
        kept = np.array(moved * g < 0)
        touched, counted = ..., ...
        if isinstance(gradient, tuple):
            touched = np.unique(gradient[1])
            counted = np.any(g != 0, axis=tuple(range(1, g.ndim)))
        mean = np.mean(kept[counted], dtype=x.dtype) if np.any(kept) else 0.0
        part = old + kept * moved / max(mean, self.min_mean)
        new = np.array(new)
        new[touched] = part[touched]
        return new, s
