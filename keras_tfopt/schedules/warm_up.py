"""The schedule of large-batch training."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.rule import register
from keras_tfopt.schedules.schedule import Schedule


@register
class WarmUpPolynomialDecay(Schedule):
    r"""A straight line up to a peak, then a polynomial down to zero.

    $$
    \eta(s) = \begin{cases}
      \eta_\text{peak} \frac{s + 1}{W} & s < W \\
      \eta_\text{peak} \left( \frac{\max(N - s, 0)}{N - W} \right)^p & \text{otherwise}
    \end{cases}
    $$

    Args:
        peak: $\eta_\text{peak}$, number >= 0.
        warmup_steps: $W$, integer >= 0. With 0, it falls from the first step on.
        total_steps: $N$, integer > `warmup_steps`.
        power: $p$, number > 0. Defaults to 2.

    Example:
    >>> rate = keras_tfopt.schedules.WarmUpPolynomialDecay(10.0, warmup_steps=50, total_steps=1000)
    >>> model.compile(optimizer=keras_tfopt.LARS(rate, skip_list=["bias"]))

    Reference: Goyal et al., "Accurate, Large Minibatch SGD" (2017), for the warm-up; You, Gitman
    and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), for the power of 2.

    Differences: `keras.optimizers.schedules.PolynomialDecay` has no warm-up.
    """

    def __init__(self, peak: float, warmup_steps: int, total_steps: int, power: float = 2.0):
        self.peak = check_number("peak", peak, 0)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self.total_steps = check_integer("total_steps", total_steps, self.warmup_steps + 1)
        self.power = check_number("power", power, 0, left_open=True)

    def __call__(self, step: Any) -> Any:
        """The learning rate after so many steps."""
        step = ops.cast(step, keras.backend.floatx())
        left = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        falling = ops.clip(left, 0.0, 1.0) ** self.power
        if self.warmup_steps == 0:
            return self.peak * falling
        rising = (step + 1) / self.warmup_steps
        return self.peak * ops.where(step < self.warmup_steps, rising, falling)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("peak", "warmup_steps", "total_steps", "power")
        return {name: getattr(self, name) for name in names}
