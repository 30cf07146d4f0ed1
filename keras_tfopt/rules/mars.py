from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import register, zeros
from keras_tfopt.rules.moments import Moments, moments, quotient


@register
class MARS(Moments):
    r"""Adam on gradients whose variance is reduced by the difference from the last ones.

    In the first step $c = g$. After that, with the last gradient $g'$ and norms over a variable,

    $$
    \begin{aligned}
    c &= g + \gamma \frac{\beta_1}{1 - \beta_1} (g - g'), \qquad
    c \leftarrow \frac{c}{\max(1, \|c\|_2)} \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) c \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) c^2 \\
    x &\leftarrow x - \eta \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. Vectors and scalars are left to Adam, with
    $c = g$ in each step.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.003.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.99.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        gamma: $\gamma \geq 0$, how much of the difference is added. Defaults to 0.025.
        optimize_1d: Whether vectors and scalars are treated like all others. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, and `last`, the gradient of the last step, of the variable's
    shape; `last` only where it is read.

    Row gradients: as if dense. A row that was not touched has a last gradient of zero.

    Example:
    >>> model.compile(optimizer=keras_tfopt.MARS(3e-3, weight_decay=0.01))

    Reference: Yuan et al., "MARS: Unleashing the Power of Variance Reduction for Training Large
    Models" (2024), in the form "MARS-approx" with AdamW.

    Differences: from the authors' implementation, the first step has no difference from zero, as in
    timm, whose learning rate and decays of vectors are not arguments here, nor is its form with
    Lion. The authors' `beta_1` is 0.95. Keras has no such optimizer.
    """

    scope = "variable"
    flat = True

    learning_rate: Any = 0.003
    beta_2 = 0.99
    gamma: float = within(0, default=0.025)
    optimize_1d: bool = flag(default=False)

    def is_corrected(self, like: Any) -> bool:
        """Return whether gradients of this variable are corrected."""
        return self.optimize_1d or len(like.shape) > 1

    def slots(self, like: Any) -> dict[str, Any]:
        last = {"last": zeros(like)} if self.is_corrected(like) else {}
        return {**super().slots(like), **last}

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_corrected": self.is_corrected(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {
            "rate": lr / (1 - self.beta_1**step),
            "correction": ops.sqrt(1 - self.beta_2**step),
            "weight": self.gamma * self.beta_1 / (1 - self.beta_1),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        c = g
        if t.is_corrected:
            c = g + t.weight * (g - s.last)
            norm = t.norm(c)
            c = ops.where(t.step > 1, c / ops.where(norm > 1, norm, ops.ones_like(norm)), g)
        m, v = moments(self, c, s)
        size = ops.sqrt(v) / t.correction + self.epsilon
        last = {"last": g} if t.is_corrected else {}
        return x - t.rate * quotient(m, size), {"m": m, "v": v, **last}
