from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, full, register


@register
class Adagrad(Rule):
    r"""Steps that shrink with the sum of all squared gradients, weight by weight.

    $$
    \begin{aligned}
    a &\leftarrow a + g^2 \\
    x &\leftarrow x - \eta \frac{g}{\sqrt{a}}
    \end{aligned}
    $$

    Rare features keep large steps, frequent ones get small steps.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        initial_accumulator_value: Number > 0 at which $a$ starts. It also keeps the denominator
            from zero, as there is no epsilon. Defaults to 0.1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accumulator`, the sum $a$, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slot change, as they would if the
    gradient were dense: without gradient neither moves.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Adagrad(0.1))

    Reference: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization" (2011).

    Differences: none from `tf.train.AdagradOptimizer`, which has no default learning rate.
    `keras.optimizers.Adagrad` adds an epsilon of 1e-7 inside of the root.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    initial_accumulator_value: float = within(0, default=0.1, left_open=True, fixed=True)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"accumulator": full(like, self.initial_accumulator_value, signed=False)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        a = s.accumulator + ops.square(g)
        return x - t.lr * g / ops.sqrt(a), {"accumulator": a}
