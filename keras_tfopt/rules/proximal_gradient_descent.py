from __future__ import annotations

from typing import Any

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register
from keras_tfopt.rules.shrinkage import proximal


@register
class ProximalGradientDescent(Rule):
    r"""Gradient descent whose penalties act after the step, so that weights become exactly zero.

    $$
    \begin{aligned}
    u &= x - \eta g \\
    x &\leftarrow \frac{\operatorname{sign}(u) \max(|u| - \eta \lambda_1, 0)}{1 + \eta \lambda_2}
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.01.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: none.

    Row gradients: only touched rows of the variable change. The penalties do not act on the other
    rows, although they act on a dense gradient that is zero.

    Example:
    >>> optimizer = keras_tfopt.ProximalGradientDescent(0.1, l1_regularization_strength=1e-3)
    >>> model.compile(optimizer=optimizer)

    Reference: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009).

    Differences: none from `tf.train.ProximalGradientDescentOptimizer`, which has no default
    learning rate. Keras has no such optimizer; a regularizer in the loss makes weights small, but
    not zero.
    """

    sparse = "rows"

    learning_rate: Any = 0.01
    l1_regularization_strength: float = within(0, default=0.0)
    l2_regularization_strength: float = within(0, default=0.0)

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return proximal(x - t.lr * g, t.lr, l1, l2), {}
