"""GGT (Agarwal et al. 2019), as TF1 has it, on one vector made of all variables.

The buffer holds first moments, not gradients. A variable without gradient takes part with zeros
and stays where it is.
"""

import numpy as np

from tests.reference import Reference, dense


class GGT(Reference):
    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        window=10,
        epsilon=1e-4,
        svd_epsilon=1e-6,
        sigma_epsilon=1e-2,
    ):
        self.learning_rate, self.beta_1, self.window = learning_rate, beta_1, window
        self.epsilon, self.svd_epsilon, self.sigma_epsilon = epsilon, svd_epsilon, sigma_epsilon

    def start(self, x):
        n, dtype = sum(value.size for value in x.values()), next(iter(x.values())).dtype
        return {None: self._slots(np.zeros(n, dtype), np.zeros((self.window, n), dtype))}

    def _slots(self, m, buffer):
        return {"moment1": m, "grad_buffer": buffer, "gram": buffer @ buffer.T}

    def advance(self, gradients, x, s, step):
        g = [dense(gradients.get(path, np.zeros_like(v)), v).ravel() for path, v in x.items()]
        m = self.beta_1 * s[None]["moment1"] + (1 - self.beta_1) * np.concatenate(g)
        buffer = s[None]["grad_buffer"].copy()
        buffer[(step - 1) % self.window] = m

        M = buffer.T / np.sqrt(min(step, self.window))
        U, sigma, _ = np.linalg.svd(M.T @ M + self.svd_epsilon * np.eye(self.window))
        root = np.sqrt(sigma)
        p = U.T @ M.T @ m
        move = M @ U @ (p / (root + self.sigma_epsilon) ** 3)
        if root.min() > self.epsilon:
            move += (m - M @ U @ (p / sigma)) / root.min()

        parts = np.split(move, np.cumsum([value.size for value in x.values()])[:-1])
        new_x = {
            path: value - self.lr(step) * part.reshape(value.shape) if path in gradients else value
            for (path, value), part in zip(x.items(), parts)
        }
        return new_x, {None: self._slots(m, buffer)}
