from __future__ import annotations

from typing import Any

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.moments import sign


@register
class Lion(Rule):
    r"""Steps of one size, in the direction of the sign of averaged gradients.

    $$
    \begin{aligned}
    c &= \beta_1 m + (1 - \beta_1) g \\
    x &\leftarrow x - \eta \operatorname{sign}(c) \\
    m &\leftarrow \beta_2 m + (1 - \beta_2) g
    \end{aligned}
    $$

    where the sign of zero is zero.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 1e-4; a third to a tenth of
            what suits Adam.
        beta_1: Weight of the average in a step, in [0, 1]. Defaults to 0.9.
        beta_2: Decay of the average, in [0, 1]. Defaults to 0.99.
        **base: Options of every optimizer, see `keras_tfopt.Rule`. With smaller learning rates,
            `weight_decay` has to be three to ten times as large as with Adam.

    Slots: `m`, the average of gradients, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slot change. Steps do not shrink
    with the average, so other rows would move by the whole learning rate for many steps.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Lion(1e-4, weight_decay=0.1))

    Reference: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023).

    Differences: from `keras.optimizers.Lion`, none for dense gradients; that one has no step for
    rows alone, and its `beta_1` may not be 0. `optax.lion` has a weight decay of 1e-3 by default.
    """

    sparse = "rows"

    learning_rate: Any = 1e-4
    beta_1: float = within(0, 1, default=0.9)
    beta_2: float = within(0, 1, default=0.99)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        c = self.beta_1 * s.m + (1 - self.beta_1) * g
        return x - t.lr * sign(c), {"m": self.beta_2 * s.m + (1 - self.beta_2) * g}
