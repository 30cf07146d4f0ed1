"""Shampoo (Gupta et al. 2018), as TF1 has it. Roots by singular values."""

import numpy as np

from tests.reference import Reference, dense


class Shampoo(Reference):
    sparse = "rows"

    def __init__(
        self,
        learning_rate=1.0,
        global_step=None,
        max_matrix_size=768,
        gbar_decay=0.0,
        gbar_weight=1.0,
        mat_gbar_decay=1.0,
        mat_gbar_weight=1.0,
        svd_interval=1,
        precond_update_interval=1,
        epsilon=1e-4,
        alpha=0.5,
        use_iterative_root=None,
    ):
        self.learning_rate, self.global_step = learning_rate, global_step
        self.max_matrix_size = max_matrix_size
        self.gbar = gbar_decay, gbar_weight
        self.mat_gbar = mat_gbar_decay, mat_gbar_weight
        self.svd_interval, self.update_interval = svd_interval, precond_update_interval
        self.epsilon, self.alpha = epsilon, alpha

    def slots(self, x):
        slots = {"gbar": np.zeros_like(x)} if self.gbar[0] else {}
        for i, d in enumerate(x.shape or (1,)):
            matrix = d <= self.max_matrix_size
            if self.mat_gbar[0] or (matrix and self.update_interval != 1):
                slots[f"Gbar_{i}"] = np.zeros((d, d) if matrix else d, x.dtype)
            if matrix and self.svd_interval != 1:
                slots[f"H_{i}"] = np.eye(d, dtype=x.dtype)
        return slots

    def step(self, gradient, x, s, step, path=""):
        large = x.ndim and x.shape[0] > self.max_matrix_size
        in_rows = large and self.gbar[0] == 0 and self.mat_gbar[0] == 1
        if gradient is None or not x.size:
            return x, s
        rows = None
        if isinstance(gradient, tuple) and in_rows:
            rows = sorted({int(index) for index in gradient[1]})
        return self._step(dense(gradient, x), x, s, step, rows)

    def _step(self, g, x, s, step, rows):
        shape, n = x.shape or (1,), x.ndim or 1
        new, count = dict(s), self.count(step)
        direction = self.gbar[0] * s.get("gbar", 0) + self.gbar[1] * g
        if "gbar" in s:
            new["gbar"] = direction
        g, direction = g.reshape(shape), direction.reshape(shape)
        for i, d in enumerate(shape):
            axes = [k for k in range(n) if k != i]
            total = s.get(f"Gbar_{i}", np.zeros((d, d) if d <= self.max_matrix_size else d))
            if d > self.max_matrix_size:
                divisor = 1 if n == 1 or (rows is not None and i == 0) else d
                squares = np.sum(g * g, axis=tuple(axes)) / divisor
                total = self.mat_gbar[0] * total + self.mat_gbar[1] * squares
                h = np.zeros_like(total)
                h[total > 0] = total[total > 0] ** (-self.alpha / n)
                direction = np.moveaxis(np.moveaxis(direction, i, -1) * h, -1, i)
            else:
                if count % self.update_interval == 0:
                    products = np.tensordot(g, g, axes=(axes, axes))
                    weight = self.mat_gbar[1] * self.update_interval
                    total = self.mat_gbar[0] * total + weight * products
                h = s.get(f"H_{i}")
                if count % self.svd_interval == 0:
                    u, sigma, _ = np.linalg.svd(total / d + self.epsilon * np.eye(d))
                    h = (u * np.maximum(sigma, self.epsilon) ** (-self.alpha / n)) @ u.T
                    if f"H_{i}" in s:
                        new[f"H_{i}"] = h
                direction = np.moveaxis(np.tensordot(direction, h, axes=([i], [0])), -1, i)
            if f"Gbar_{i}" in s:
                new[f"Gbar_{i}"] = total
        moved = x - self.lr(step) * direction.reshape(x.shape)
        if rows is None:
            return moved, new
        kept = x.copy()
        kept[rows] = moved[rows]
        return kept, new
