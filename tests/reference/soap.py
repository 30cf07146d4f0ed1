"""SOAP (Vyas et al. 2024), without weight decay."""

import numpy as np

from tests.reference import Reference
from tests.reference.distributed_shampoo import merged


def eigenvectors(matrix):
    vectors = np.linalg.eigh(matrix)[1][:, ::-1]
    largest = vectors[np.argmax(np.abs(vectors), axis=0), range(len(matrix))]
    return vectors * np.where(largest < 0, -1, 1)


class SOAP(Reference):
    def __init__(
        self,
        learning_rate=0.003,
        beta_1=0.95,
        beta_2=0.95,
        shampoo_beta=None,
        epsilon=1e-8,
        precondition_frequency=10,
        max_precond_dim=10000,
        merge_dims=False,
        precondition_1d=False,
        normalize_grads=False,
        correct_bias=True,
        decomposition="qr",
    ):
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.shampoo_beta = shampoo_beta
        self.every, self.limit = precondition_frequency, max_precond_dim
        self.merges, self.vectors = merge_dims, precondition_1d
        self.normalizes, self.corrects = normalize_grads, correct_bias
        self.decomposition = decomposition

    def shape(self, x):
        return merged(x.shape, self.limit, 1) if self.merges else x.shape or (1,)

    def slots(self, x):
        slots = {"m": np.zeros_like(x), "v": np.zeros_like(x)}
        if x.size and (x.ndim > 1 or self.vectors):
            for i, d in enumerate(self.shape(x)):
                if d <= self.limit:
                    slots[f"GG_{i}"] = np.zeros((d, d), x.dtype)
                    slots[f"Q_{i}"] = np.eye(d, dtype=x.dtype)
        return slots

    def update(self, g, x, s, step, path):
        if not x.size:
            return x, s
        shape = self.shape(x)
        new = {name: value.copy() for name, value in s.items()}
        axes = [i for i in range(len(shape)) if f"Q_{i}" in s]
        g = g.reshape(shape)
        if step > 1:
            new["m"] = self.beta_1 * s["m"] + (1 - self.beta_1) * g.reshape(x.shape)
            turned = self.turn(g, s, axes)
            v = self.beta_2 * s["v"].reshape(shape) + (1 - self.beta_2) * turned**2
            new["v"] = v.reshape(x.shape)
            m, size = self.turn(new["m"].reshape(shape), s, axes), np.sqrt(v) + self.epsilon
            u = np.where(size > 0, m / np.where(size > 0, size, 1), m)
            for i in axes:
                u = np.moveaxis(np.tensordot(s[f"Q_{i}"], u, axes=(1, i)), 0, i)
            if self.normalizes:
                u = u / (1e-30 + np.sqrt(np.mean(u * u)))
            rate = self.lr(step)
            if self.corrects:
                count = step - 1
                rate *= np.sqrt(1 - self.beta_2**count) / (1 - self.beta_1**count)
            x = x - rate * u.reshape(x.shape)
        beta = self.beta_2 if self.shampoo_beta is None else self.shampoo_beta
        for i in axes:
            others = [k for k in range(len(shape)) if k != i]
            outer = np.tensordot(g, g, axes=(others, others))
            new[f"GG_{i}"] = beta * s[f"GG_{i}"] + (1 - beta) * outer
            self.renew(i, new, shape, step)
        return x, new

    def turn(self, value, s, axes):
        for i in axes:
            value = np.moveaxis(np.tensordot(s[f"Q_{i}"], value, axes=(0, i)), 0, i)
        return value

    def renew(self, i, new, shape, step):
        """Put the next basis of an axis into `new`, and sort v."""
        total, basis = new[f"GG_{i}"], new[f"Q_{i}"]
        if (step - 1) % self.every:
            return
        if step == 1 or self.decomposition == "eigh":
            new[f"Q_{i}"] = eigenvectors(total)
            return
        order = np.argsort(-np.diag(basis.T @ total @ basis), kind="stable")
        q, r = np.linalg.qr(total @ basis[:, order])
        new[f"Q_{i}"] = q * np.where(np.diag(r) < 0, -1, 1)
        v = new["v"].reshape(shape)
        new["v"] = np.take(v, order, axis=i).reshape(new["v"].shape)
