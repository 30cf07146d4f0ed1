"""Muon (Jordan et al. 2024), with another rule for variables that are no matrices."""

import re

import numpy as np

from tests.reference import Reference
from tests.reference.lion import Lion
from tests.reference.nadam_w import NadamW

COEFFICIENTS = [3.4445, -4.775, 2.0315]
OTHERS = {"nadam_w": NadamW, "lion": Lion}


class Muon(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        momentum=0.95,
        nesterov=True,
        scaling="match_rms_adamw",
        ns_steps=5,
        ns_coefficients=COEFFICIENTS,
        norm="frobenius",
        epsilon=1e-7,
        bias_correction=False,
        adaptive=False,
        products=None,
        others="nadam_w",
        others_factor=None,
        other_variables=r"(^|/)(embeddings|[^/]*bias|gamma|beta)$",
        stack_axes=None,
    ):
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov
        self.scaling, self.steps, self.coefficients = scaling, ns_steps, ns_coefficients
        self.norm, self.epsilon = norm, epsilon
        self.corrects, self.adaptive = bias_correction, adaptive
        self.others, self.factor = OTHERS[others](), 1 if others_factor is None else others_factor
        self.other_variables, self.stack_axes = other_variables or "^$", stack_axes or {}

    def start(self, x):
        matrix = {path for path in x if self.is_matrix(path, x[path])}
        return {
            path: {"m": np.zeros_like(value)} if path in matrix else self.others.slots(value)
            for path, value in x.items()
        }

    def slots(self, x):
        return {"m": np.zeros_like(x)} if x.ndim > 1 else self.others.slots(x)

    def is_matrix(self, path, x):
        return x.ndim > 1 and not re.search(self.other_variables, path)

    def step(self, gradient, x, s, step, path=""):
        if self.is_matrix(path, x):
            return super().step(gradient, x, s, step, path)
        self.others.learning_rate = self.lr(step) * self.factor
        return self.others.step(gradient, x, s, step, path)

    def update(self, g, x, s, step, path):
        if not x.size:
            return x, s
        b = self.momentum
        m = b * s["m"] + (1 - b) * g
        u = m / (1 - b**step) if self.corrects else m
        if self.nesterov:
            ahead, present = (1 - b ** (step + 1), 1 - b**step) if self.corrects else (1, 1)
            u = b * m / ahead + (1 - b) * g / present
        stack = next((axes for key, axes in self.stack_axes.items() if re.search(key, path)), ())
        moved = np.moveaxis(u, stack, range(len(stack)))
        counts = moved.shape[: len(stack)]
        several = moved.reshape(-1, int(np.prod(moved.shape[len(stack) : -1])), moved.shape[-1])
        several = np.stack([self.orthogonal(one) for one in several]).reshape(moved.shape)
        assert several.shape[: len(stack)] == counts
        return x - self.lr(step) * np.moveaxis(several, range(len(stack)), stack), {"m": m}

    def orthogonal(self, matrix):
        rows, columns = matrix.shape
        y = matrix / (self.size(matrix) + self.epsilon)
        each = self.coefficients
        each = each if isinstance(each[0], list) else [each] * self.steps
        # The same polynomial on either side; the smaller product has less rounding.
        for a, b, c in each:
            if rows <= columns:
                p = y @ y.T
                y = a * y + (b * p + c * p @ p) @ y
            else:
                p = y.T @ y
                y = a * y + y @ (b * p + c * p @ p)
        if self.adaptive:
            y = y * np.sum(matrix * y)
        if self.scaling == "original":
            return y * max(1, columns / rows) ** 0.5
        return y * (0.2 if isinstance(self.scaling, str) else self.scaling) * max(y.shape) ** 0.5

    def size(self, matrix):
        """A norm, or one number for each row or column, whichever are fewer."""
        if self.norm == "aol":
            if matrix.shape[0] > matrix.shape[1]:
                return np.sqrt(np.abs(matrix.T @ matrix).sum(0))
            return np.sqrt(np.abs(matrix @ matrix.T).sum(1))[:, None]
        values = np.linalg.svd(matrix, compute_uv=False)
        order = {"frobenius": 2, "schatten": 4, "spectral": np.inf}[self.norm]
        return np.linalg.norm(values, order)
