"""Rules of Keras 2 that recordings of TensorFlow Addons have inside of wrappers.

Only those that differ from the rules of this package. They are here for replaying, as a user would
write rules of one's own.
"""

from typing import Any

from keras import ops

import keras_tfopt


class SGD(keras_tfopt.Rule):
    """Momentum with the learning rate inside of the slot."""

    sparse = "rows"

    def __init__(self, learning_rate=0.01, momentum=0.0, nesterov=False, **base):
        super().__init__(learning_rate, **base)
        self.momentum, self.nesterov = momentum, nesterov

    def slots(self, like: Any) -> dict[str, Any]:
        return {"momentum": keras_tfopt.zeros(like)} if self.momentum else {}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if not self.momentum:
            return x - t.lr * g, {}
        m = self.momentum * s.momentum - t.lr * g
        return x + (self.momentum * m - t.lr * g if self.nesterov else m), {"momentum": m}


class RMSprop(keras_tfopt.Rule):
    """With squares that start at zero, and epsilon inside of the root only with momentum."""

    sparse = "rows"

    def __init__(
        self, learning_rate=0.001, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False, **base
    ):
        super().__init__(learning_rate, **base)
        self.rho, self.momentum, self.epsilon, self.centered = rho, momentum, epsilon, centered

    def slots(self, like: Any) -> dict[str, Any]:
        names = ["rms", *["momentum"] * bool(self.momentum), *["mg"] * self.centered]
        return {name: keras_tfopt.zeros(like) for name in names}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        new = {"rms": self.rho * s.rms + (1 - self.rho) * g * g}
        variance = new["rms"]
        if self.centered:
            new["mg"] = self.rho * s.mg + (1 - self.rho) * g
            variance = variance - new["mg"] * new["mg"]
        if not self.momentum:
            return x - t.lr * g / (ops.sqrt(variance) + self.epsilon), new
        new["momentum"] = self.momentum * s.momentum + t.lr * g / ops.sqrt(variance + self.epsilon)
        return x - new["momentum"], new


class Nadam(keras_tfopt.Rule):
    """With a momentum that grows from step to step, as in Dozat's report."""

    scope = "variable"
    sparse = "move_rows"

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, **base):
        super().__init__(learning_rate, **base)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            "m": keras_tfopt.zeros(like),
            "v": keras_tfopt.zeros(like),
            "product": keras_tfopt.Slot((), 1.0),
        }

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {
            "lr": lr,
            "now": self.beta_1 * (1 - 0.5 * 0.96 ** (0.004 * step)),
            "next": self.beta_1 * (1 - 0.5 * 0.96 ** (0.004 * (step + 1))),
            "seen": 1 - self.beta_2**step,
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        product = s.product * t.now
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        v = self.beta_2 * s.v + (1 - self.beta_2) * g * g
        ahead = (1 - t.now) * g / (1 - product) + t.next * m / (1 - product * t.next)
        step = t.lr * ahead / (ops.sqrt(v / t.seen) + self.epsilon)
        return x - step, {"m": m, "v": v, "product": product}
