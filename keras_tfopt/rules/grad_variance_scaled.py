from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros


@register
class GradVarianceScaled(Rule):
    r"""Gradient descent with smaller steps where a gradient is further from its average than usual.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    u &= (g - m)^2 \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) u \\
    x &\leftarrow x - \eta g \min\left(\frac{v}{u + \epsilon}, 1\right)
    \end{aligned}
    $$

    element by element, with the new $m$ and $v$.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.01.
        beta_1: Decay of the average, in [0, 1]. Defaults to 0.9.
        beta_2: Decay of the usual variance, in [0, 1]. Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the average of the gradients, and `v`, that of their variance, of the variable's
    shape. Both start at zero and are not corrected for it, so the first steps are small.

    Row gradients: `m` and `v` decay in all rows; a variance is seen, and the variable moves, in
    touched rows only.

    Example:
    >>> model.compile(optimizer=keras_tfopt.GradVarianceScaled(0.1))

    Reference: `GradVarianceScaledOptimizer` of RETURNN.

    Differences: the original does not sum repeated rows, and has no default learning rate. With an
    epsilon of 0, where v and u are both 0, it divides zero by zero; here the step is that of plain
    gradient descent. Keras has no such optimizer.
    """

    sparse = "move_rows"

    learning_rate: Any = 0.01
    beta_1: float = within(0, 1, default=0.9)
    beta_2: float = within(0, 1, default=0.999)
    epsilon: float = within(0, default=1e-8)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like), "v": zeros(like, signed=False)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        u = ops.square(g - m)
        seen = u if t.touched is None else ops.where(t.touched, u, ops.zeros_like(u))
        v = self.beta_2 * s.v + (1 - self.beta_2) * seen
        bound = u + self.epsilon
        scale = ops.where(v >= bound, ops.ones_like(v), v / bound)
        return x - t.lr * scale * g, {"m": m, "v": v}
