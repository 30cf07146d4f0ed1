from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, over_root


@register
class AdaMax(Moments):
    r"""Adam with the largest gradient so far in place of the second moment.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \max(\beta_2 v, |g|) \\
    x &\leftarrow x - \frac{\eta}{1 - \beta_1^t} \frac{m}{v + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, whether or not a row took part in them.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the largest gradient, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the first moment, and `v`, the largest gradient, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slots change.

    Example:
    >>> model.compile(optimizer=keras_tfopt.AdaMax(2e-3))

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), section 7.1.

    Differences: epsilon, which the paper does not have, is added as in
    `tf.contrib.opt.AdaMaxOptimizer`. With an epsilon of 0, entries that have never had a gradient
    stay where they are; the original makes them NaN. `keras.optimizers.Adamax` has a default
    epsilon of 1e-7 and updates every row of a table at each step.
    """

    sparse = "rows"

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"rate": lr / (1 - self.beta_1**step)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        decayed, size = self.beta_2 * s.v, ops.abs(g)
        v = ops.where(decayed > size, decayed, size)
        return x - t.rate * over_root(m, v, self.epsilon), {"m": m, "v": v}
