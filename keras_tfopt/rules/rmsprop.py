from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, full, register, zeros


@register
class RMSProp(Rule):
    r"""Gradients divided by a moving average of their size, with momentum.

    $$
    \begin{aligned}
    r &\leftarrow \rho r + (1 - \rho) g^2 \\
    c &\leftarrow \rho c + (1 - \rho) g           & \text{(centered; else } c = 0 \text{)} \\
    a &\leftarrow \mu a + \eta \frac{g}{\sqrt{r - c^2 + \epsilon}} \\
    x &\leftarrow x - a
    \end{aligned}
    $$

    where $r$ starts at one. The centered form divides by an estimate of the standard deviation.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        rho: Decay of the averages, in [0, 1]. Defaults to 0.9.
        momentum: $\mu$ in [0, 1]. Defaults to 0.
        epsilon: Number >= 0, inside of the root. Defaults to 1e-10.
        centered: Whether to subtract the square of the average gradient. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `rms`, the average $r$; `mg`, the average gradient $c$, if centered; `momentum`, the
    accumulated step $a$ (learning rate included); all of the variable's shape.

    Row gradients: only touched rows of the variable and of the slots change. The momentum of the
    other rows neither acts nor decays until they are touched again.

    Example:
    >>> model.compile(optimizer=keras_tfopt.RMSProp(1e-3, momentum=0.9, centered=True))

    References: Tieleman and Hinton, "Lecture 6.5, rmsprop" (2012); Graves, "Generating Sequences
    With Recurrent Neural Networks" (2013), for the centered form.

    Differences: as in `tf.train.RMSPropOptimizer`, `rms` starts at one, so that first steps are
    small; `keras.optimizers.RMSprop` starts it at zero and has an epsilon of 1e-7. The original
    calls `rho` `decay` and has no default learning rate. Where rounding makes $r - c^2$ negative,
    which can give NaN there, it counts as zero here. With epsilon = 0, what is 0/0 there is 0 here.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    rho: float = within(0, 1, default=0.9)
    momentum: float = within(0, 1, default=0.0)
    epsilon: float = within(0, default=1e-10)
    centered: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        centered = {"mg": zeros(like)} if self.centered else {}
        return {"rms": full(like, 1.0, signed=False), **centered, "momentum": zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        rms = self.rho * s.rms + (1 - self.rho) * ops.square(g)
        if self.centered:
            mg = self.rho * s.mg + (1 - self.rho) * g
            variance = rms - ops.square(mg)
            variance = ops.where(variance < 0, ops.zeros_like(variance), variance)
            averages = {"rms": rms, "mg": mg}
        else:
            variance, averages = rms, {"rms": rms}
        size = ops.sqrt(variance + self.epsilon)
        if isinstance(self.epsilon, float) and not self.epsilon:
            size = ops.where(ops.equal(size, 0), ops.ones_like(size), size)
        a = self.momentum * s.momentum + t.lr * g / size
        return x - a, {**averages, "momentum": a}
