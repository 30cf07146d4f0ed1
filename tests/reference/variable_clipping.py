"""VariableClipping bounds norms of variables after each step (Hinton et al. 2012)."""

import re

import numpy as np

from tests.reference.around import Around


class VariableClipping(Around):
    def __init__(self, vars_to_clip_dims, max_norm, **arguments):
        super().__init__(**arguments)
        self.vars_to_clip_dims, self.max_norm = vars_to_clip_dims, max_norm

    def dims(self, x, path):
        if callable(self.vars_to_clip_dims):
            return self.vars_to_clip_dims(x)
        found = [d for key, d in self.vars_to_clip_dims.items() if re.search(key, path)]
        return found[0] if found else None

    def after(self, x, s, rows, step, path):
        dims = self.dims(x, path)
        if dims is None:
            return x, s
        axes = tuple(dim % x.ndim for dim in dims)
        norms = np.sqrt(np.sum(np.square(x), axis=axes, keepdims=True))
        clipped = x * self.max_norm / np.maximum(norms, self.max_norm)
        if rows is None or 0 in axes:
            return clipped, s
        x = x.copy()
        x[rows] = clipped[rows]
        return x, s
