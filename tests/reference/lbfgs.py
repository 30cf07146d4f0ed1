"""L-BFGS (Liu and Nocedal 1989), on one vector made of all variables: the recursion of two loops.

A variable without gradient takes part with zeros and stays where it is.
"""

import numpy as np

from tests.reference import Reference, dense


class LBFGS(Reference):
    divides_by_curvature = True

    def __init__(self, learning_rate=1.0, memory=10):
        self.learning_rate, self.memory = learning_rate, memory

    def start(self, x):
        x0 = np.concatenate([value.ravel() for value in x.values()])
        rows = self.memory + 1
        pairs = {name: np.zeros((rows, len(x0)), x0.dtype) for name in ("steps", "changes")}
        products = {
            name: np.zeros((rows, rows), x0.dtype) for name in ("steps_changes", "changes_changes")
        }
        last = {"last_x": x0, "last_gradient": np.zeros_like(x0)}
        return {None: {**pairs, **products, **last, "pairs": np.zeros((), x0.dtype)}}

    def advance(self, gradients, x, s, step):
        s = {name: value.copy() for name, value in s[None].items()}
        g = [dense(gradients[p] if p in gradients else 0 * v, v).ravel() for p, v in x.items()]
        g = np.concatenate(g)
        before = {path: self.undecayed.get(path, value) for path, value in x.items()}
        here = np.concatenate([value.ravel() for value in before.values()])
        rows = self.memory + 1
        free = int(s["pairs"]) % rows
        s["steps"][free], s["changes"][free] = here - s["last_x"], g - s["last_gradient"]
        s["steps_changes"][free] = s["changes"] @ s["steps"][free]
        s["steps_changes"][:, free] = s["steps"] @ s["changes"][free]
        s["changes_changes"][free] = s["changes_changes"][:, free] = (
            s["changes"] @ s["changes"][free]
        )
        if s["steps_changes"][free, free] > 1e-8 * s["changes_changes"][free, free]:
            s["pairs"] = s["pairs"] + 1
        s["last_x"], s["last_gradient"] = here, g

        count = int(s["pairs"])
        kept = [n % rows for n in range(max(count - self.memory, 0), count)]
        q, gamma, weights = g, 1 / max(1, np.linalg.norm(g)), {}
        for n in reversed(kept):
            weights[n] = s["steps"][n] @ q / (s["changes"][n] @ s["steps"][n])
            q = q - weights[n] * s["changes"][n]
        if kept:
            last = kept[-1]
            gamma = s["steps"][last] @ s["changes"][last] / np.sum(s["changes"][last] ** 2)
        r = gamma * q
        for n in kept:
            back = s["changes"][n] @ r / (s["changes"][n] @ s["steps"][n])
            r = r + (weights[n] - back) * s["steps"][n]
        parts = np.split(self.lr(step) * r, np.cumsum([v.size for v in x.values()])[:-1])
        new = {
            path: value - part.reshape(value.shape) if path in gradients else value
            for (path, value), part in zip(x.items(), parts)
        }
        return new, {None: s}
