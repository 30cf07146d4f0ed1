from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros


@register
class PowerSign(Rule):
    r"""Multiplied steps where the gradient agrees in sign with its average, divided ones elsewhere.

    $$
    \begin{aligned}
    m &\leftarrow \beta m + (1 - \beta) g \\
    x &\leftarrow x - \eta b^{f \operatorname{sign}(g) \operatorname{sign}(m)} g
    \end{aligned}
    $$

    with base $b$ and sign decay $f$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.1.
        base: Number > 0. Defaults to $e$.
        beta: Decay of the average, in [0, 1]. Defaults to 0.9.
        sign_decay: Number in [0, 1] or a schedule, such as those of `keras_tfopt.schedules`; it is
            called with the number of steps done. Defaults to None, a constant 1.
        **options: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the average of the gradient, of the variable's shape.

    Row gradients: the average of all rows decays, but only touched rows of the variable move.

    Example:
    >>> decay = keras_tfopt.schedules.CosineSignDecay(10_000)
    >>> model.compile(optimizer=keras_tfopt.PowerSign(0.1, sign_decay=decay))

    Reference: Bello et al., "Neural Optimizer Search with Reinforcement Learning" (2017).

    Differences: none from `tf.contrib.opt.PowerSignOptimizer`, where the decay is a function of the
    global step called `sign_decay_fn`. Keras has no such optimizer.
    """

    sparse = "move_rows"

    learning_rate: Any = 0.1
    base: float = within(0, default=math.e, left_open=True)
    beta: float = within(0, 1, default=0.9)
    sign_decay: Any = within(0, 1, default=None)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        decay = 1.0 if self.sign_decay is None else self.sign_decay
        return {"lr": lr, "more": lr * self.base**decay, "less": lr * self.base ** (-decay)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta * s.m + (1 - self.beta) * g
        agreement = ops.sign(g) * ops.sign(m)
        rate = ops.where(agreement > 0, t.more, ops.where(agreement < 0, t.less, t.lr))
        return x - rate * g, {"m": m}
