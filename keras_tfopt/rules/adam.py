from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag
from keras_tfopt.rule import register, zeros
from keras_tfopt.rules.moments import Moments, largest, moments, over_root


@register
class Adam(Moments):
    r"""Adam with the semantics of TensorFlow 1.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With `amsgrad` the largest $v$ so far,
    $\hat v \leftarrow \max(\hat v, v)$, stands in its place in the last line.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        amsgrad: Whether the denominator never shrinks. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape. With `amsgrad` also `vhat`, the
    largest second moment so far.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not, as
    in `tf.train.AdamOptimizer`; see `keras_tfopt.LazyAdam` for the update of touched rows alone.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Adam(1e-3))

    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015); for `amsgrad`,
    Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond" (2018).

    Differences: epsilon is added after the bias correction ("epsilon hat" in the paper), as in
    `tf.train.AdamOptimizer`, which has no `amsgrad`; `keras.optimizers.Adam` does the same with a
    default of 1e-7 instead of 1e-8, and does not sum repeated rows on TensorFlow.
    """

    amsgrad: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            **super().slots(like),
            **({"vhat": zeros(like, signed=False)} if self.amsgrad else {}),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if not self.amsgrad or t.rows:
            return super().update(g, x, s, t)
        m, v = moments(self, g, s)
        vhat = largest(s.vhat, v)
        step = t.rate * over_root(m, ops.sqrt(vhat), self.epsilon)
        return x - step, {"m": m, "v": v, "vhat": vhat}
