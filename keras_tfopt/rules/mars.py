from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import one_of
from keras_tfopt.fields import field, flag, within
from keras_tfopt.rule import register, zeros
from keras_tfopt.rules.moments import Moments, at_least, moments, over_root, sign


@register
class MARS(Moments):
    r"""Adam on gradients whose variance is reduced by the difference from the last ones.

    With the last gradient $g'$, which in the first step is $g$, and norms over a variable,

    $$
    \begin{aligned}
    c &= g + \gamma \frac{\beta_1}{1 - \beta_1} (g - g'), \qquad
    c \leftarrow \frac{c}{\max(1, \|c\|_2)} \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) c \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) c^2 \\
    x &\leftarrow x - \eta \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. In the form "lion" there is no $v$, and the last
    line is $x \leftarrow x - \eta \operatorname{sign}(m)$. Vectors and scalars are left to Adam in
    either form, with $c = g$ in each step.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.003.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.99.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        gamma: $\gamma \geq 0$, how much of the difference is added. Defaults to 0.025.
        optimize_1d: Whether vectors and scalars are treated like all others. Defaults to False.
        form: "adam" or "lion", how steps are made of $c$. Defaults to "adam".
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, and `last`, the gradient of the last step, of the variable's
    shape; `v` and `last` only where they are read.

    Row gradients: as if dense. A row that was not touched has a last gradient of zero.

    Example:
    >>> model.compile(optimizer=keras_tfopt.MARS(3e-3, weight_decay=0.01))

    Reference: Yuan et al., "MARS: Unleashing the Power of Variance Reduction for Training Large
    Models" (2024): MARS-AdamW and MARS-Lion, both "MARS-approx".

    Differences: in the authors' implementation, the last gradient of the first step is zero, and
    kernels of more than two axes are left to Adam; here it is as in timm. Their `lr_1d_factor` and
    `betas_1d` are `groups` here: a function of the variable that returns `learning_rate_factor`,
    `beta_1` and `beta_2` for vectors. The authors' `beta_1` is 0.95. Keras has no such optimizer.
    """

    scope = "variable"
    flat = True

    learning_rate: Any = 0.003
    beta_2 = 0.99
    gamma: float = within(0, default=0.025)
    optimize_1d: bool = flag(default=False)
    form: str = field(one_of("adam", "lion"), default="adam")

    def is_corrected(self, like: Any) -> bool:
        """Return whether gradients of this variable are corrected."""
        return self.optimize_1d or len(like.shape) > 1

    def slots(self, like: Any) -> dict[str, Any]:
        if not self.is_corrected(like):
            return super().slots(like)
        own = super().slots(like) if self.form == "adam" else {"m": zeros(like)}
        return {**own, "last": zeros(like)}

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_corrected": self.is_corrected(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {
            "lr": lr,
            "rate": lr / (1 - self.beta_1**step),
            "correction": ops.sqrt(1 - self.beta_2**step),
            "weight": self.gamma * self.beta_1 / (1 - self.beta_1),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if not t.is_corrected:
            return self._adam(g, x, s, t)
        c = ops.where(t.step > 1, g + t.weight * (g - s.last), g)
        c = c * (1 / at_least(t.norm(c), 1.0))
        if self.form == "lion":
            m = self.beta_1 * s.m + (1 - self.beta_1) * c
            return x - t.lr * sign(m), {"m": m, "last": g}
        x, new = self._adam(c, x, s, t)
        return x, {**new, "last": g}

    def _adam(self, c: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return what Adam makes of a gradient."""
        m, v = moments(self, c, s)
        step = t.rate * over_root(m, ops.sqrt(v) / t.correction, self.epsilon)
        return x - step, {"m": m, "v": v}
