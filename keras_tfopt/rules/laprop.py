from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.moments import over_root, quotient


@register
class LaProp(Rule):
    r"""Adam with the order changed: momentum of normalized gradients.

    $$
    \begin{aligned}
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) \eta
        \frac{g}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} \\
    r &\leftarrow \beta_1 r + (1 - \beta_1) \eta \\
    x &\leftarrow x - \frac{\eta}{r} m
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With a constant learning rate, $\eta / r$ is the
    bias correction $1 / (1 - \beta_1^t)$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 4e-4.
        beta_1: Decay of the momentum, in [0, 1). Defaults to 0.9. It may be larger than Adam's:
            with any two decays the steps are bounded.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-15.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape, and `rate`, the average of learning
    rates, a scalar.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> model.compile(optimizer=keras_tfopt.LaProp(4e-4))

    Reference: Ziyin, Wang and Ueda, "LaProp: Separating Momentum and Adaptivity in Adam" (2020).

    Differences: from the authors' implementation and timm's, `weight_decay` shrinks variables
    before the step and not after it; and before the first step with a learning rate above zero,
    nothing moves, where theirs divides by zero. They count steps for each variable, and here t
    counts the optimizer's: where the first gradient of a variable comes late, its first steps are
    up to $1 / \sqrt{1 - \beta_2}$ learning rates long. Keras has no such optimizer.
    """

    scope = "variable"
    elementwise = True

    learning_rate: Any = 4e-4
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.999, right_open=True)
    epsilon: float = within(0, default=1e-15)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like), "v": zeros(like, signed=False), "rate": Slot((), by_row=False)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "correction": ops.sqrt(1 - self.beta_2**step)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        v = self.beta_2 * s.v + (1 - self.beta_2) * ops.square(g)
        u = over_root(g, ops.sqrt(v) / t.correction, self.epsilon)
        m = self.beta_1 * s.m + (1 - self.beta_1) * t.lr * u
        rate = self.beta_1 * s.rate + (1 - self.beta_1) * t.lr
        return x - quotient(t.lr * m, rate), {"m": m, "v": v, "rate": rate}
