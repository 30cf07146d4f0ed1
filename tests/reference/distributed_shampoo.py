"""Shampoo with blocks and grafting (Shi et al. 2023), which computes one block after the other."""

import itertools

import numpy as np

from tests.reference import Reference


def merged(shape, limit, target):
    """The shape with neighbors merged from the left, down to a number of axes."""
    sizes = [n for n in shape if n != 1] or [1]
    place = 0
    while place + 1 < len(sizes) and len(sizes) > target:
        if sizes[place] * sizes[place + 1] <= limit:
            sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
        else:
            place += 1
    return tuple(sizes)


def power(matrix, exponent, epsilon):
    values, vectors = np.linalg.eigh(matrix + epsilon * np.eye(len(matrix)))
    return (vectors * np.maximum(values, epsilon) ** exponent) @ vectors.T


def times(value, axis, matrix):
    return np.moveaxis(np.tensordot(matrix, value, axes=(1, axis)), 0, axis)


def filled_up(value, shape):
    return np.pad(value, [(0, n - m) for n, m in zip(shape, value.shape, strict=True)])


def eigenvectors(matrix):
    """By ascending eigenvalues; the largest entry of each is positive."""
    _, vectors = np.linalg.eigh(matrix)
    return np.where(-vectors.min(0) > vectors.max(0), -vectors, vectors)


class DistributedShampoo(Reference):
    def __init__(
        self,
        learning_rate=0.01,
        beta_1=0.9,
        beta_2=1.0,
        beta_3=None,
        epsilon=1e-12,
        max_preconditioner_dim=1024,
        precondition_frequency=1,
        start_preconditioning_step=None,
        use_bias_correction=True,
        grafting=None,
        grafting_beta_2=0.999,
        grafting_epsilon=1e-10,
        exponent_override=None,
        target_parameter_dimensionality=1,
        use_iterative_root=None,
        eigenvalue_corrected=False,
    ):
        self.by_eigenvalues = eigenvalue_corrected
        self.learning_rate, self.epsilon, self.limit = (
            learning_rate,
            epsilon,
            max_preconditioner_dim,
        )
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.beta_3 = beta_3
        self.averages = beta_1 > 0 or beta_3 is not None
        self.every = precondition_frequency
        self.first = start_preconditioning_step or precondition_frequency
        self.corrects, self.exponent = use_bias_correction, exponent_override
        self.grafting, self.target = grafting, target_parameter_dimensionality
        self.grafting_beta_2, self.grafting_epsilon = grafting_beta_2, grafting_epsilon

    def blocks(self, x):
        """Slices of the merged array, in order."""
        shape = merged(x.shape, self.limit, self.target)
        cuts = [[slice(k, k + self.limit) for k in range(0, n, self.limit)] for n in shape]
        return shape, list(itertools.product(*cuts))

    def slots(self, x):
        shape, blocks = self.blocks(x)
        slots = {"m": np.zeros_like(x)} if self.averages else {}
        if self.grafting in ("adagrad", "rmsprop", "adam"):
            slots["v"] = np.zeros_like(x)
        for i, n in enumerate(shape):
            d = max(1, min(n, self.limit))
            slots[f"L_{i}"] = np.zeros((len(blocks), d, d), x.dtype)
            name = "Q" if self.by_eigenvalues else "H"
            slots[f"{name}_{i}"] = slots[f"L_{i}"] + np.eye(d, dtype=x.dtype)
        if self.by_eigenvalues:
            size = [max(1, min(n, self.limit)) for n in shape]
            slots["E"] = np.zeros((len(blocks), *size), x.dtype)
        return slots

    def update(self, g, x, s, step, path):
        if not x.size:
            return x, s
        shape, blocks = self.blocks(x)
        new = {name: value.copy() for name, value in s.items()}
        average = g
        if "m" in s:
            beta_3 = self.beta_1 if self.beta_3 is None else self.beta_3
            average = beta_3 * s["m"] + (1 - beta_3) * g
            new["m"] = self.beta_1 * s["m"] + (1 - self.beta_1) * g
            if self.corrects:
                average = average / (1 - beta_3 * self.beta_1 ** (step - 1))
        grafted = self.grafted(g, average, new, step).reshape(shape)
        direction = np.zeros(shape, x.dtype)
        for number, place in enumerate(blocks):
            block = average.reshape(shape)[place]
            matrices = {name: value[number] for name, value in new.items() if name[0] in "LHQE"}
            p = self.preconditioned(g.reshape(shape)[place], block, matrices, step)
            if self.grafting is not None:
                q = grafted[place]
                p = q if step < self.first else p * np.linalg.norm(q) / (np.linalg.norm(p) + 1e-16)
            direction[place] = p
        return x - self.lr(step) * direction.reshape(x.shape), new

    def grafted(self, g, average, new, step):
        """The step of the grafted method; changes its second moment in `new`."""
        if "v" not in new:
            return average
        beta = self.grafting_beta_2
        v = new["v"] + g * g if self.grafting == "adagrad" else beta * new["v"] + (1 - beta) * g * g
        new["v"] = v
        if self.grafting == "adam":
            v = v / (1 - beta**step)
        size = np.sqrt(v) + self.grafting_epsilon
        return np.where(size > 0, average / np.where(size > 0, size, 1), average)

    def preconditioned(self, g, direction, matrices, step):
        """The direction of a block; changes its matrices."""
        due = step == self.first or (step > self.first and step % self.every == 0)
        for i in range(g.ndim):
            total = matrices[f"L_{i}"]
            d = g.shape[i]
            others = [k for k in range(g.ndim) if k != i]
            outer = np.tensordot(g, g, axes=(others, others))
            padded = np.zeros_like(total)
            padded[:d, :d] = outer
            kept, added = (1, 1) if self.beta_2 == 1 else (self.beta_2, 1 - self.beta_2)
            total[...] = kept * total + added * padded
            if self.by_eigenvalues:
                continue
            root = matrices[f"H_{i}"]
            if due:
                scale = 1 - self.beta_2**step if self.corrects and self.beta_2 < 1 else 1
                exponent = self.exponent or 1 / (2 * g.ndim)
                root[...] = power(total / scale, -exponent, self.epsilon)
            direction = times(direction, i, root[:d, :d])
        if not self.by_eigenvalues:
            return direction
        place = tuple(slice(n) for n in g.shape)
        bases = [matrices[f"Q_{i}"] for i in range(g.ndim)]
        direction, g = (filled_up(value, matrices["E"].shape) for value in (direction, g))
        for i, basis in enumerate(bases):
            if due:
                basis[...] = eigenvectors(matrices[f"L_{i}"])
            direction, g = times(direction, i, basis.T), times(g, i, basis.T)
        matrices["E"][...] = kept * matrices["E"] + added * g * g
        scale = 1 - self.beta_2**step if self.corrects and self.beta_2 < 1 else 1
        direction = direction / (np.sqrt(matrices["E"] / scale) + self.epsilon)
        for i, basis in enumerate(bases):
            direction = times(direction, i, basis)
        return direction[place]
