from __future__ import annotations

from typing import Any

from keras_tfopt.rule import Rule, register


@register
class GradientDescent(Rule):
    r"""Plain gradient descent.

    $$
    x \leftarrow x - \eta g
    $$

    with learning rate $\eta$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.01.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: none.

    Row gradients: only touched rows of the variable change, as they would if the gradient were
    dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.GradientDescent(0.1))

    Reference: Robbins and Monro, "A Stochastic Approximation Method" (1951).

    Differences: none from `tf.train.GradientDescentOptimizer`, which has no default learning rate.
    `keras.optimizers.SGD` without momentum is the same rule; with `gradient_accumulation_steps` or
    `global_clipnorm` it makes row gradients dense, which ours stay clear of.
    """

    sparse = "rows"

    learning_rate: Any = 0.01

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x - t.lr * g, {}
