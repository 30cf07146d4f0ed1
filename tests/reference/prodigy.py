"""Prodigy (Mishchenko and Defazio 2023), on one vector made of all variables.

A variable without gradient takes part with zeros and stays where it is.
"""

import numpy as np

from tests.reference import Reference, dense


class Prodigy(Reference):
    def __init__(
        self,
        learning_rate=1.0,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        beta_3=None,
        d0=1e-6,
        d_coef=1.0,
        growth_rate=None,
        use_bias_correction=False,
        safeguard_warmup=False,
        slice_p=1,
    ):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.beta_3, self.epsilon, self.d0, self.d_coef = beta_3, epsilon, d0, d_coef
        self.growth_rate, self.use_bias_correction = growth_rate, use_bias_correction
        self.safeguard_warmup, self.slice_p = safeguard_warmup, slice_p

    def _some(self, vectors):
        """Return the entries that the estimate sees, of all variables."""
        return np.concatenate([vector.ravel()[:: self.slice_p] for vector in vectors])

    def start(self, x):
        x0 = self._some(x.values())
        size = sum(value.size for value in x.values())
        zeros = {name: np.zeros(size, x0.dtype) for name in ("m", "v")}
        zeros["s"] = np.zeros_like(x0)
        d = np.asarray(self.d0, x0.dtype)
        return {None: {**zeros, "x0": x0, "d": d, "d_max": d, "d_numerator": 0 * d, "steps": 0 * d}}

    def advance(self, gradients, x, s, step):
        s = s[None]
        g = [dense(gradients[p] if p in gradients else 0 * v, v).ravel() for p, v in x.items()]
        seen, g = self._some(g), np.concatenate(g)
        before = {path: self.undecayed.get(path, value) for path, value in x.items()}
        away = s["x0"] - self._some(before.values())

        d, estimate, t = s["d"], s["d"], s["steps"] + 1
        if self.use_bias_correction:
            estimate = d * np.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)
        a = self.lr(step) * estimate
        b3 = np.sqrt(self.beta_2) if self.beta_3 is None else self.beta_3
        new = dict(s)
        new["m"] = self.beta_1 * s["m"] + (1 - self.beta_1) * d * g
        new["v"] = self.beta_2 * s["v"] + (1 - self.beta_2) * d**2 * g**2
        new["s"] = b3 * s["s"] + d / self.d0 * (d if self.safeguard_warmup else a) * seen
        if not np.any(new["s"]):
            return before, {None: new}

        new["steps"] = t
        new["d_numerator"] = b3 * s["d_numerator"] + d / self.d0 * a * np.dot(seen, away)
        d_hat = self.d_coef * new["d_numerator"] / np.abs(new["s"]).sum()
        new["d_max"] = max(s["d_max"], d_hat)
        new["d"] = max(d, d_hat) if d == np.asarray(self.d0, d.dtype) else d
        growth = np.inf if self.growth_rate is None else self.growth_rate
        new["d"] = min(new["d_max"], new["d"] * growth)

        move = a * new["m"] / (np.sqrt(new["v"]) + new["d"] * self.epsilon)
        parts = np.split(move, np.cumsum([value.size for value in x.values()])[:-1])
        new_x = dict(x)
        for (path, value), part in zip(x.items(), parts):
            if path in gradients:
                # Decay comes with the learning rate; the estimate multiplies it, too.
                decay = estimate * (before[path] - value)
                new_x[path] = before[path] - decay - part.reshape(value.shape)
        return new_x, {None: new}
