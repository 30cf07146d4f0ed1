from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.rule import Rule, register

SMALLEST = 1e-6  # norm below which a gradient is divided by this instead


@register
class NormalizedSGD(Rule):
    r"""Gradient descent by the direction of the gradient alone.

    $$
    x \leftarrow x - \eta \frac{g}{\max(\lVert g \rVert, 10^{-6})}
    $$

    with the Euclidean norm over the whole variable. Each variable moves by $\eta$ in every step,
    however small or large its gradient is; so let the learning rate fall.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable: the length of a step. Defaults to
            0.01.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: none.

    Row gradients: only touched rows change. The norm is that of the gradient after repeated rows
    are summed, and so that of the dense gradient.

    Example:
    >>> schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=1000)
    >>> model.compile(optimizer=keras_tfopt.NormalizedSGD(schedule))

    Reference: the optimizer of this name in RETURNN.

    Differences: the original does not sum repeated rows before it takes the norm, and has no
    default learning rate. `keras.optimizers.SGD(clipnorm=...)` shortens gradients that are too
    long, but leaves short ones as they are.
    """

    scope = "variable"
    flat = True
    sparse = "rows"

    learning_rate: Any = 0.01

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        norm = t.norm(g)
        return x - t.lr * g / ops.where(norm < SMALLEST, SMALLEST * ops.ones_like(norm), norm), {}
