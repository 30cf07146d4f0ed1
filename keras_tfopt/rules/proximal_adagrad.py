from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, full, register
from keras_tfopt.rules.shrinkage import proximal


@register
class ProximalAdagrad(Rule):
    r"""Adagrad whose penalties act after the step, so that weights become exactly zero.

    $$
    \begin{aligned}
    a &\leftarrow a + g^2, \qquad r = \frac{\eta}{\sqrt{a}} \\
    u &= x - r g \\
    x &\leftarrow \frac{\operatorname{sign}(u) \max(|u| - r \lambda_1, 0)}{1 + r \lambda_2}
    \end{aligned}
    $$

    weight by weight.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        initial_accumulator_value: Number > 0 at which $a$ starts. Defaults to 0.1.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accumulator`, the sum $a$ of squared gradients, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slot change. The penalties do not
    act on the other rows, although they act on a dense gradient that is zero.

    Example:
    >>> optimizer = keras_tfopt.ProximalAdagrad(0.1, l1_regularization_strength=1e-3)
    >>> model.compile(optimizer=optimizer)

    References: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009);
    Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization" (2011).

    Differences: none from `tf.train.ProximalAdagradOptimizer`, which has no default learning rate,
    nor from `tensorflow_addons.optimizers.ProximalAdagrad`. Keras has no such optimizer.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    initial_accumulator_value: float = within(0, default=0.1, left_open=True, fixed=True)
    l1_regularization_strength: float = within(0, default=0.0)
    l2_regularization_strength: float = within(0, default=0.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"accumulator": full(like, self.initial_accumulator_value, signed=False)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        a = s.accumulator + ops.square(g)
        rate = t.lr / ops.sqrt(a)
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return proximal(x - rate * g, rate, l1, l2), {"accumulator": a}
