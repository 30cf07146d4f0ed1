"""Adam with D-Adaptation (Defazio and Mishchenko 2023), on one vector made of all variables.

A variable without gradient takes part with zeros and stays where it is.
"""

import numpy as np

from tests.reference import Reference, dense


class DAdaptAdam(Reference):
    def __init__(self, learning_rate=1.0, beta_1=0.9, beta_2=0.999, epsilon=1e-8, d0=1e-6):
        self.learning_rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.epsilon, self.d0 = epsilon, d0

    def start(self, x):
        flat = np.concatenate([value.ravel() for value in x.values()])
        zeros = {name: np.zeros_like(flat) for name in ("m", "v", "s")}
        d = np.asarray(self.d0, flat.dtype)
        return {None: {**zeros, "d": d, "d_numerator": 0 * d}}

    def advance(self, gradients, x, s, step):
        s, q = s[None], np.sqrt(self.beta_2)
        g = [dense(gradients[p] if p in gradients else 0 * v, v).ravel() for p, v in x.items()]
        g = np.concatenate(g)
        estimate = s["d"] * np.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        a = self.lr(step) * estimate

        scaled = s["s"] / (np.sqrt(s["v"]) + self.epsilon)
        new = {
            "m": self.beta_1 * s["m"] + (1 - self.beta_1) * a * g,
            "v": self.beta_2 * s["v"] + (1 - self.beta_2) * g**2,
            "s": q * s["s"] + (1 - q) * a * g,
            "d_numerator": q * s["d_numerator"] + (1 - q) * a * np.dot(g, scaled),
            "d": s["d"],
        }
        if np.any(new["s"]):
            new["d"] = max(s["d"], new["d_numerator"] / ((1 - q) * np.abs(new["s"]).sum()))

        move = new["m"] / (np.sqrt(new["v"]) + self.epsilon)
        parts = np.split(move, np.cumsum([value.size for value in x.values()])[:-1])
        new_x = dict(x)
        for (path, value), part in zip(x.items(), parts):
            if path in gradients:
                # Decay comes with the learning rate; the estimate multiplies it, too.
                before = self.undecayed.get(path, value)
                new_x[path] = before - estimate * (before - value) - part.reshape(value.shape)
        return new_x, {None: new}
