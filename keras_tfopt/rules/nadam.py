from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, moments, over_root


@register
class Nadam(Moments):
    r"""Adam with Nesterov's look ahead in the first moment.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
        \frac{\beta_1 m + (1 - \beta_1) g}{\sqrt{v} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape.

    Row gradients: the moments of all rows decay, but only touched rows of the variable move.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Nadam(1e-3))

    Reference: Dozat, "Incorporating Nesterov Momentum into Adam" (2016).

    Differences: as in `tf.contrib.opt.NadamOptimizer`, the momentum is constant and both terms of
    the look ahead share one bias correction; the paper, and `keras.optimizers.Nadam`, let the
    momentum grow over the steps and correct the terms apart. With an epsilon of 0, entries that
    have never had a gradient stay where they are; the original makes them NaN.
    """

    sparse = "move_rows"

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        ahead = self.beta_1 * m + (1 - self.beta_1) * g
        return x - t.rate * over_root(ahead, ops.sqrt(v), self.epsilon), {"m": m, "v": v}
