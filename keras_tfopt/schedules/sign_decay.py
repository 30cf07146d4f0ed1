"""Schedules by which the sign terms of AddSign and PowerSign decay."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.rule import register
from keras_tfopt.schedules.schedule import Schedule, as_number, half_cosine


@register
class LinearSignDecay(Schedule):
    r"""A straight line from 1 to 0.

    $$ \frac{N - s}{N}, \quad s = \min(\text{step}, N) $$

    Args:
        decay_steps: $N$, integer >= 1.

    Example:
    >>> keras_tfopt.AddSign(0.1, sign_decay=keras_tfopt.schedules.LinearSignDecay(10_000))

    Reference: Bello et al., "Neural Optimizer Search with Reinforcement Learning" (2017).

    Differences: none from `tf.contrib.opt.get_linear_decay_fn`.
    """

    def __init__(self, decay_steps: int):
        self.decay_steps = check_integer("decay_steps", decay_steps, 1)

    def __call__(self, step: Any) -> Any:
        """Return the decay after so many steps."""
        return (self.decay_steps - _done(step, self.decay_steps)) / self.decay_steps


@register
class CosineSignDecay(Schedule):
    r"""A cosine between 1 and 0 that comes back up if it has more than half a period.

    $$ \frac{1}{2} \Bigl( 1 + \cos \frac{2 \pi P s}{N} \Bigr), \quad s = \min(\text{step}, N) $$

    and 0 from the step on at which $P s / N \geq$ `zero_after`.

    Args:
        decay_steps: $N$, integer >= 1.
        num_periods: $P$, number > 0 of periods within `decay_steps`. Defaults to 0.5, from 1 to 0.
        zero_after: Number > 0 of periods, or None for never. Defaults to None.

    Example:
    >>> keras_tfopt.AddSign(0.1, sign_decay=keras_tfopt.schedules.CosineSignDecay(10_000))

    Reference: Bello et al., "Neural Optimizer Search with Reinforcement Learning" (2017).

    Differences: none from `tf.contrib.opt.get_cosine_decay_fn`.
    """

    def __init__(self, decay_steps: int, num_periods: float = 0.5, zero_after: float | None = None):
        self.decay_steps = check_integer("decay_steps", decay_steps, 1)
        self.num_periods = check_number("num_periods", num_periods, 0, left_open=True)
        if zero_after is not None:
            zero_after = check_number("zero_after", zero_after, 0, left_open=True)
        self.zero_after = zero_after

    def __call__(self, step: Any) -> Any:
        """Return the decay after so many steps."""
        periods = self.num_periods * _done(step, self.decay_steps)  # times N
        value = self._value(periods)
        if self.zero_after is None:
            return value
        is_over = periods >= self.zero_after * self.decay_steps
        return ops.where(is_over, ops.zeros_like(value), value)

    def _value(self, periods: Any) -> Any:
        """Return the decay after so many periods, times N."""
        return 0.5 * (1 + ops.cos(2 * math.pi * periods / self.decay_steps))


@register
class RestartSignDecay(CosineSignDecay):
    r"""Half a cosine from 1 to 0, over and over.

    $$ \frac{1}{2} \Bigl( 1 + \cos \frac{\pi ((P s) \bmod N)}{N} \Bigr),
       \quad s = \min(\text{step}, N) $$

    and 0 from the step on at which $P s / N \geq$ `zero_after`. With a whole number of periods it
    ends at 1, where the next one would begin; `zero_after=num_periods` makes it end at 0.

    Args:
        decay_steps: $N$, integer >= 1.
        num_periods: $P$, number > 0 of descents within `decay_steps`. Defaults to 1.
        zero_after: Number > 0 of descents, or None for never. Defaults to None.

    Example:
    >>> decay = keras_tfopt.schedules.RestartSignDecay(10_000, num_periods=4, zero_after=4)
    >>> keras_tfopt.PowerSign(0.1, sign_decay=decay)

    Reference: Bello et al., "Neural Optimizer Search with Reinforcement Learning" (2017); restarts
    after Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017).

    Differences: none from `tf.contrib.opt.get_restart_decay_fn`.
    """

    def __init__(self, decay_steps: int, num_periods: float = 1, zero_after: float | None = None):
        super().__init__(decay_steps, num_periods, zero_after)

    def _value(self, periods: Any) -> Any:
        return half_cosine(ops.mod(periods, self.decay_steps) / self.decay_steps)


def _done(step: Any, decay_steps: int) -> Any:
    step = as_number(step)
    return ops.where(step < decay_steps, step, ops.full_like(step, decay_steps))
