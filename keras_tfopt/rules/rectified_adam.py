from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import integer, within
from keras_tfopt.rule import register
from keras_tfopt.rules.adam import Adam
from keras_tfopt.rules.moments import largest, moments, over_root
from keras_tfopt.rules.rectification import rectification, warmed


@register
class RectifiedAdam(Adam):
    r"""Adam that does not divide by the second moment before there is enough of it.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
    \rho = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
    r &= \sqrt{\frac{(\rho - 4)(\rho - 2) \rho_\infty}
        {(\rho_\infty - 4)(\rho_\infty - 2) \rho}} \\
    u &= \frac{m}{1 - \beta_1^t}
        \frac{r}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
        \quad \text{if } \rho \geq \rho_\text{min} \text{, else }
        \frac{m}{1 - \beta_1^t} \\
    x &\leftarrow x - \eta (u + \lambda x)
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With the defaults, the first five steps are those
    of momentum. With `amsgrad`, the largest $v$ so far stands in its place.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-7.
        amsgrad: Whether the denominator never shrinks. Defaults to False.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 0.
        sma_threshold: $\rho_\text{min} > 4$. Defaults to 5.
        total_steps: Integer >= 0. If it is not 0, the learning rate is multiplied by a rise from 0
            in a line, and falls in another to `min_lr` at this step. Defaults to 0.
        warmup_proportion: Share of `total_steps` in which it rises, in [0, 1]. Defaults to 0.1.
        min_lr: Number >= 0. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape. With `amsgrad` also `vhat`, the
    largest second moment so far.

    Row gradients: the moments of all rows decay, but only touched rows of the variable move.

    Example:
    >>> ranger = keras_tfopt.Lookahead(keras_tfopt.RectifiedAdam(1e-3))

    Reference: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond" (2020).

    Differences: none from `tensorflow_addons.optimizers.RectifiedAdam`, except for the order of
    arguments; its $\rho$ is less accurate in the first steps. A threshold of 4 or less, for which
    $r$ would be the root of a negative number, is refused. Keras has no such optimizer.
    """

    scope = "variable"
    flat = True
    sparse = "move_rows"

    epsilon = 1e-7
    weight_decay: float = within(0, default=0.0)
    sma_threshold: float = within(4, default=5.0, left_open=True)
    total_steps: int = integer(0, default=0)
    warmup_proportion: float = within(0, 1, default=0.1, fixed=True)
    min_lr: float = within(0, default=0.0)

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        first, second = 1 - self.beta_1**step, 1 - self.beta_2**step
        rate = warmed(self, lr, step)
        return {"rate": rate, "first": first, "second": second, **rectification(self, step)}

    def averages(self, g: Any, s: Any, t: Any) -> tuple[Any, Any]:
        """Return the new moments."""
        return moments(self, g, s)

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = self.averages(g, s, t)
        new = {"m": m, "v": v}
        if self.amsgrad:
            v = largest(s.vhat, v)
            new = {**new, "vhat": v}
        mean = m / t.first
        divided = over_root(mean, ops.sqrt(v / t.second), self.epsilon)
        step = ops.where(t.is_rectified > 0, t.rectification * divided, mean)
        decay = 0.0 if t.is_excluded else self.weight_decay
        return x - t.rate * (step + decay * x), new
