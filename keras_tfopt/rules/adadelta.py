from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros


@register
class Adadelta(Rule):
    r"""Steps in the units of the weights, from averages of past gradients and past steps.

    $$
    \begin{aligned}
    a &\leftarrow \rho a + (1 - \rho) g^2 \\
    u &= \frac{\sqrt{d + \epsilon}}{\sqrt{a + \epsilon}} g \\
    x &\leftarrow x - \eta u \\
    d &\leftarrow \rho d + (1 - \rho) u^2
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001; the paper has
            1.0.
        rho: Decay of the averages, in [0, 1]. Defaults to 0.95.
        epsilon: Number > 0, inside of both roots. The first steps are of the size of its root, so
            it decides how fast training starts. Defaults to 1e-8.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accum`, the average $a$ of squared gradients, and `accum_update`, the average $d$ of
    squared steps (learning rate not included), of the variable's shape.

    Row gradients: only touched rows of the variable and of the slots change. The averages of the
    other rows do not decay.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Adadelta(1.0, epsilon=1e-6))

    Reference: Zeiler, "ADADELTA: An Adaptive Learning Rate Method" (2012).

    Differences: none from `tf.train.AdadeltaOptimizer`, but that epsilon = 0, with which nothing
    ever moves, is refused. `keras.optimizers.Adadelta` has the same rule with an epsilon of 1e-7.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    rho: float = within(0, 1, default=0.95)
    epsilon: float = within(0, default=1e-8, left_open=True)

    def slots(self, like: Any) -> dict[str, Any]:
        return {name: zeros(like, signed=False) for name in ("accum", "accum_update")}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        a = self.rho * s.accum + (1 - self.rho) * ops.square(g)
        u = ops.sqrt(s.accum_update + self.epsilon) / ops.sqrt(a + self.epsilon) * g
        d = self.rho * s.accum_update + (1 - self.rho) * ops.square(u)
        return x - t.lr * u, {"accum": a, "accum_update": d}
