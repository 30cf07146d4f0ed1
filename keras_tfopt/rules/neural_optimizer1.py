from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros


@register
class NeuralOptimizer1(Rule):
    r"""Gradient descent with small steps where the gradient has turned against its average.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    x &\leftarrow x - \eta g \cdot \begin{cases}
        1 & \text{if } \operatorname{sign} m = \operatorname{sign} g \\
        \delta & \text{otherwise} \end{cases}
    \end{aligned}
    $$

    element by element, with the new $m$.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.01.
        beta_1: Decay of the average, in [0, 1]. Defaults to 0.9.
        decrease_factor: $\delta \geq 0$. Defaults to 0.1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the average of the gradients, of the variable's shape.

    Row gradients: the average decays in all rows, only touched rows of the variable move.

    Example:
    >>> model.compile(optimizer=keras_tfopt.NeuralOptimizer1(0.1, decrease_factor=0.2))

    Reference: Bello et al., "Neural Optimizer Search with Reinforcement Learning" (2017), in the
    form that RETURNN gave one of its findings.

    Differences: the original does not sum repeated rows before it compares signs, and has no
    default learning rate. Keras has no such optimizer.
    """

    sparse = "move_rows"

    learning_rate: Any = 0.01
    beta_1: float = within(0, 1, default=0.9)
    decrease_factor: float = within(0, default=0.1)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        agree = ops.equal(ops.sign(m), ops.sign(g))
        return x - t.lr * ops.where(agree, g, self.decrease_factor * g), {"m": m}
