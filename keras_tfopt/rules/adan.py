from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.moments import agreement, at_least, over_root


@register
class Adan(Rule):
    r"""Nesterov's momentum without a look ahead: averages of gradients and of their differences.

    With the last gradient $g'$, which in the first step is $g$ itself,

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    d &\leftarrow \beta_2 d + (1 - \beta_2) (g - g') \\
    n &\leftarrow \beta_3 n + (1 - \beta_3) \left(g + \beta_2 (g - g')\right)^2 \\
    u &= \frac{m / (1 - \beta_1^t) + \beta_2 d / (1 - \beta_2^t)}
        {\sqrt{n / (1 - \beta_3^t)} + \epsilon} \\
    x &\leftarrow \frac{x - \eta u}{1 + \eta \lambda}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With `cautious`, the numerator of $u$ has

    $$
    \frac{\phi m}{\max(\overline{\phi}, 0.001)}, \qquad
    \phi = \begin{cases} 1 & m g > 0 \\ 0 & \text{otherwise} \end{cases}
    $$

    instead of $m$, where $\overline{\phi}$ is the mean of $\phi$ over the variable.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the average of gradients, in [0, 1). Defaults to 0.98.
        beta_2: Decay of the average of differences, in [0, 1). Defaults to 0.92.
        beta_3: Decay of the average of squares, in [0, 1). Defaults to 0.99.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        weight_decay: $\lambda \geq 0$. Variables are divided, as the proximal step of the penalty
            wants it. Defaults to 0.
        cautious: Whether the average of gradients counts only where it has the sign of the
            gradient. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, `d` and `n`, the averages, and `last`, the gradient of the last step, of the
    variable's shape.

    Row gradients: as if dense. A row that was not touched has a last gradient of zero.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Adan(1e-3, weight_decay=0.02))

    Reference: Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
    Models" (2022). Its $\beta_i$ are $1 - \beta_i$ here, as in the authors' implementation.

    Differences: for a decay that is subtracted, `no_prox` of the original, wrap an `Adan` without
    decay in `keras_tfopt.DecoupledWeightDecay(..., scale_by_learning_rate=True)`. `optax.adan`
    weighs differences by $1 - \beta_2$ where $\beta_2$ belongs. `cautious` is `caution` of timm,
    which leaves differences alone; `keras_tfopt.Cautious` around an `Adan` masks the whole step.
    Keras has no such optimizer.
    """

    scope = "variable"
    flat = True

    learning_rate: Any = 0.001
    beta_1: float = within(0, 1, default=0.98, right_open=True)
    beta_2: float = within(0, 1, default=0.92, right_open=True)
    beta_3: float = within(0, 1, default=0.99, right_open=True)
    epsilon: float = within(0, default=1e-8)
    weight_decay: float = within(0, default=0.0)
    cautious: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        return {n: zeros(like, signed=n != "n") for n in ("m", "d", "n", "last")}

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {
            "lr": lr,
            "first": 1 / (1 - self.beta_1**step),
            "difference": self.beta_2 / (1 - self.beta_2**step),
            "square": ops.sqrt(1 - self.beta_3**step),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        change = ops.where(t.step > 1, g - s.last, ops.zeros_like(g))
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        d = self.beta_2 * s.d + (1 - self.beta_2) * change
        n = self.beta_3 * s.n + (1 - self.beta_3) * ops.square(g + self.beta_2 * change)
        kept = self._kept(m, g, t) if self.cautious else m
        root = ops.sqrt(n) / t.square
        u = over_root(t.first * kept + t.difference * d, root, self.epsilon)
        decay = 0.0 if t.is_excluded else self.weight_decay
        x = (x - t.lr * u) / (1 + t.lr * decay)
        return x, {"m": m, "d": d, "n": n, "last": g}

    def _kept(self, m: Any, g: Any, t: Any) -> Any:
        """Return the part of the average that has the sign of the gradient, enlarged."""
        agrees = agreement(m, g)
        return m * agrees / at_least(t.mean(agrees), 0.001)
