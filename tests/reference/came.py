"""CAME (Luo et al. 2023), without weight decay."""

import numpy as np

from tests.reference import Reference


def rooted(row, col):
    """The root of the matrix with these means of its rows and columns."""
    return np.sqrt(row[..., :, None] * col[..., None, :] / row.mean(-1)[..., None, None])


class CAME(Reference):
    def __init__(
        self,
        learning_rate=2e-4,
        beta_1=0.9,
        beta_2=0.999,
        beta_3=0.9999,
        epsilon_1=1e-30,
        epsilon_2=1e-16,
        clip_threshold=1.0,
    ):
        self.learning_rate, self.clip_threshold = learning_rate, clip_threshold
        self.beta_1, self.beta_2, self.beta_3 = beta_1, beta_2, beta_3
        self.epsilon_1, self.epsilon_2 = epsilon_1, epsilon_2

    def slots(self, x):
        if x.ndim < 2:
            return {"m": np.zeros_like(x), "v": np.zeros_like(x)}
        row, col = np.zeros_like(x.sum(-1)), np.zeros_like(x.sum(-2))
        factors = {"row": row, "col": col, "residual_row": row, "residual_col": col}
        return {"m": np.zeros_like(x), **factors}

    def update(self, g, x, s, step, path):
        if x.size == 0:
            return x, s  # NumPy has no mean of an empty array
        new = {}

        def averaged(names, square, beta):
            for name, axis in zip(names, (-1, -2), strict=True):
                new[name] = beta * s[name] + (1 - beta) * square.mean(axis)
            return rooted(*(new[name] for name in names))

        square = g * g + x.dtype.type(self.epsilon_1)
        if x.ndim < 2:
            new["v"] = self.beta_2 * s["v"] + (1 - self.beta_2) * square
            u = g / np.sqrt(new["v"])
        else:
            u = g / averaged(("row", "col"), square, self.beta_2)
        u = u / max(1.0, np.sqrt(np.mean(u * u)) / self.clip_threshold)
        new["m"] = m = self.beta_1 * s["m"] + (1 - self.beta_1) * u
        if x.ndim > 1:
            residual = (u - m) ** 2 + x.dtype.type(self.epsilon_2)
            m = m / averaged(("residual_row", "residual_col"), residual, self.beta_3)
        return x - self.lr(step) * m, new
