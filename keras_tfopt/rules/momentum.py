from __future__ import annotations

from typing import Any

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, register, zeros


@register
class Momentum(Rule):
    r"""Gradient descent with momentum, or with Nesterov's accelerated gradient.

    $$
    \begin{aligned}
    a &\leftarrow \mu a + g \\
    x &\leftarrow x - \eta a                & \text{(plain)} \\
    x &\leftarrow x - \eta g - \eta \mu a   & \text{(Nesterov)}
    \end{aligned}
    $$

    with learning rate $\eta$, momentum $\mu$ and the new $a$ in the last line.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.01.
        momentum: Number in [0, 1]. Defaults to 0.9.
        nesterov: Whether to step to where the accumulated gradient leads. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `momentum`, the accumulated gradient $a$, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slot change. The momentum of the
    other rows neither acts nor decays until they are touched again.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Momentum(0.1, momentum=0.9, nesterov=True))

    References: Polyak, "Some methods of speeding up the convergence of iteration methods" (1964);
    Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).

    Differences: the learning rate is outside of the slot, as in `tf.train.MomentumOptimizer`; in
    `keras.optimizers.SGD` it is inside, so there a change of the learning rate reaches the
    accumulated gradient only step by step. With a constant rate both move the variable alike. The
    original has no defaults for its two numbers.
    """

    sparse = "rows"

    learning_rate: Any = 0.01
    momentum: float = within(0, 1, default=0.9)
    nesterov: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"momentum": zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        a = self.momentum * s.momentum + g
        step = g + self.momentum * a if self.nesterov else a
        return x - t.lr * step, {"momentum": a}
