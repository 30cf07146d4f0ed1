from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_global_step
from keras_tfopt.fields import field
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments


@register
class AdamGS(Moments):
    r"""Adam whose bias corrections follow a count of steps from outside.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}
    \end{aligned}
    $$

    where $t$ is the global step plus 1: a variable that the program counts in. Without it this is
    `keras_tfopt.Adam`.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        global_step: Scalar `keras.Variable` with the number of steps done so far, 0 before the
            first. The optimizer reads it at each step and never changes it. Defaults to None, the
            optimizer's own count.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not; see
    `keras_tfopt.LazyAdamGS` for the update of touched rows alone.

    Example:
    >>> step = keras.Variable(0, dtype="int32", trainable=False)
    >>> model.compile(optimizer=keras_tfopt.AdamGS(1e-3, global_step=step))

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015).

    Differences: in `tf.contrib.opt.AdamGSOptimizer` the global step is the first argument, and its
    default is a constant 0, with which $t$ stays 1; pass a variable that you never change to get
    that. Learning rate schedules follow the optimizer's own count in any case. With an epsilon of
    0, entries that have never had a gradient stay where they are; the original makes them NaN.
    Keras has no such optimizer.
    """

    global_step: Any = field(lambda _, value: check_global_step(value), default=None)
