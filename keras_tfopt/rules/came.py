from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.factored import divided, factor_slots, factors, rms
from keras_tfopt.rules.moments import at_least


@register
class CAME(Rule):
    r"""Adafactor with momentum, divided by the size of what the momentum does not explain.

    With means $R$ over the last axis and $C$ over the last but one, and $\bar R$ the mean of $R$
    over its last axis,

    $$
    \begin{aligned}
    r &\leftarrow \beta_2 r + (1 - \beta_2) R(g^2 + \epsilon_1), \qquad
    c \leftarrow \beta_2 c + (1 - \beta_2) C(g^2 + \epsilon_1) \\
    u &= \frac{g}{\sqrt{r c / \bar r}}, \qquad
    u \leftarrow \frac{u}{\max(1, \operatorname{rms}(u) / d)} \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) u \\
    r' &\leftarrow \beta_3 r' + (1 - \beta_3) R((u - m)^2 + \epsilon_2), \qquad
    c' \leftarrow \beta_3 c' + (1 - \beta_3) C((u - m)^2 + \epsilon_2) \\
    x &\leftarrow x - \eta \frac{m}{\sqrt{r' c' / \bar r'}}
    \end{aligned}
    $$

    Vectors and scalars keep an average $v$ of $g^2 + \epsilon_1$ itself, by whose root $u$ is
    divided, and move by $\eta m$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 2e-4.
        beta_1: Decay of the momentum, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        beta_3: Decay of the residual, in [0, 1). Defaults to 0.9999.
        epsilon_1: Number > 0 that is added to squared gradients. Defaults to 1e-30.
        epsilon_2: Number > 0 that is added to squared residuals. Defaults to 1e-16.
        clip_threshold: $d > 0$, largest root mean square of $u$ over a variable. Defaults to 1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the momentum, of the variable's shape; of matrices and kernels also `row`, `col`,
    `residual_row` and `residual_col`, which lack one of the last two axes; of vectors and scalars
    `v`, of the variable's shape.

    Row gradients: as if dense. All rows move, touched or not.

    Example:
    >>> model.compile(optimizer=keras_tfopt.CAME(2e-4))

    Reference: Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization" (2023).

    Differences: from the authors' implementation, decays are three arguments instead of a
    tuple, and there is no `ams_bound`. In pytorch_optimizer that keeps the largest root of the
    second moment, and takes the root of it again. Keras has no such optimizer.
    """

    scope = "variable"

    learning_rate: Any = 2e-4
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.999, right_open=True)
    beta_3: float = within(0, 1, default=0.9999, right_open=True)
    epsilon_1: float = within(0, default=1e-30, left_open=True)
    epsilon_2: float = within(0, default=1e-16, left_open=True)
    clip_threshold: float = within(0, default=1.0, left_open=True)

    def slots(self, like: Any) -> dict[str, Any]:
        shape = like.shape
        if len(shape) < 2:
            return {"m": zeros(like), "v": zeros(like, signed=False)}
        row, col = factor_slots(shape)
        factored = {"row": row, "col": col, "residual_row": row, "residual_col": col}
        return {"m": zeros(like), **factored}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        square = ops.square(g) + self.epsilon_1
        if len(x.shape) < 2:
            v = self.beta_2 * s.v + (1 - self.beta_2) * square
            m = self._momentum(g / ops.sqrt(v), s)[1]
            return x - t.lr * m, {"m": m, "v": v}
        row, col = factors(square, s.row, s.col, self.beta_2)
        u, m = self._momentum(divided(g, row, col), s)
        residual = ops.square(u - m) + self.epsilon_2
        rows, cols = factors(residual, s.residual_row, s.residual_col, self.beta_3)
        new = {"m": m, "row": row, "col": col, "residual_row": rows, "residual_col": cols}
        return x - t.lr * divided(m, rows, cols), new

    def _momentum(self, u: Any, s: Any) -> tuple[Any, Any]:
        """Return the clipped direction and its average."""
        u = u / at_least(rms(u) / self.clip_threshold, 1.0)
        return u, self.beta_1 * s.m + (1 - self.beta_1) * u
