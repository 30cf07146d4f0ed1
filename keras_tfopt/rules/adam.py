from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.rule import Rule, register, within, zeros
from keras_tfopt.rules.moments import corrected_rate, moments, quotient


@register
class Adam(Rule):
    r"""Adam with the semantics of TensorFlow 1.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}
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

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not, as
    in `tf.train.AdamOptimizer`; see `keras_tfopt.LazyAdam` for the update of touched rows alone.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Adam(1e-3))

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015).

    Differences: epsilon is added after the bias correction ("epsilon hat" in the paper), as in
    `tf.train.AdamOptimizer`; `keras.optimizers.Adam` does the same with a default of 1e-7 instead
    of 1e-8, has AMSGrad as an option, and does not sum repeated rows on TensorFlow.
    """

    learning_rate: Any = 0.001
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.999, right_open=True)
    epsilon: float = within(0, default=1e-8)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like), "v": zeros(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"rate": corrected_rate(self, lr, step)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        return x - t.rate * quotient(m, ops.sqrt(v) + self.epsilon), {"m": m, "v": v}
