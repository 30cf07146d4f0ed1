"""Learning rates that rise in the beginning."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_function_of_step, check_integer, check_number, one_of
from keras_tfopt.engine import as_schedule, changes, current
from keras_tfopt.rule import register
from keras_tfopt.schedules.schedule import Schedule, as_number, half_cosine


@register
class WarmUp(Schedule):
    r"""Rise in a straight line to where another schedule begins, then follow that.

    $$
    \eta(s) = \begin{cases}
      \eta_0 + (f(0) - \eta_0) \frac{s}{W} & s < W \\
      f(s - W) & \text{otherwise}
    \end{cases}
    $$

    Args:
        schedule: $f$, a schedule or function of the number of steps, which counts from the end of
            the warm-up; or a number >= 0 to stay at.
        steps: $W$, integer >= 0.
        start: $\eta_0$, number >= 0. Defaults to 0.

    Example:

    >>> decay = keras.optimizers.schedules.ExponentialDecay(0.001, 1000, 0.9)
    >>> rate = keras_tfopt.schedules.WarmUp(decay, 500)

    Reference: Goyal et al., "Accurate, Large Minibatch SGD" (2017).

    Differences: of `keras.optimizers.schedules`, only `CosineDecay` has a warm-up.
    """

    def __init__(self, schedule: Any, steps: int, start: float = 0.0):
        self.schedule = as_schedule(check_function_of_step("schedule", schedule, 0))
        self.steps = check_integer("steps", steps, 0)
        self.start = check_number("start", start, 0)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after so many steps."""
        step = as_number(step)
        following = self._followed(ops.maximum(step - self.steps, 0.0))
        if self.steps == 0:
            return following
        first = self._followed(ops.zeros_like(step))
        rising = self.start + (first - self.start) * step / self.steps
        return ops.where(step < self.steps, rising, following)

    def _followed(self, step: Any) -> Any:
        if not changes(self.schedule):
            return ops.full_like(step, self.schedule)
        return ops.cast(current(self.schedule, step), step.dtype)


@register
class WarmUpStableDecay(Schedule):
    r"""Rise in a straight line, stay, and fall at the end of training.

    $$
    \eta(s) = \begin{cases}
      \eta_1 \frac{s}{W} & s < W \\
      \eta_1 & s < W + S \\
      \eta_2 + (\eta_1 - \eta_2) h\left( \frac{s - W - S}{D} \right) & s < W + S + D \\
      \eta_2 & \text{otherwise}
    \end{cases}
    $$

    To extend the training, resume it from weights of the stable part.

    Args:
        peak: $\eta_1$, number >= 0.
        warmup_steps: $W$, integer >= 0.
        stable_steps: $S$, integer >= 0.
        decay_steps: $D$, integer >= 1.
        end: $\eta_2$, number >= 0. Defaults to 0.
        shape: $h(p)$: "linear" for $1 - p$, "cosine" for $(1 + \cos \pi p) / 2$, "1-sqrt" for
            $1 - \sqrt{p}$, "1-square" for $1 - p^2$. Defaults to "1-sqrt".

    Example:

    >>> rate = keras_tfopt.schedules.WarmUpStableDecay(1e-3, 500, 8000, 1500)

    Reference: Hu et al., "MiniCPM: Unveiling the Potential of Small Language Models" (2024); for
    the shapes Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
    Durations" (2024).

    Differences: there is none in `keras.optimizers.schedules`. Implementations for PyTorch exist in
    which only the cosine falls to `end`, and other shapes fall to 0 and jump up to it.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        stable_steps: int,
        decay_steps: int,
        end: float = 0.0,
        shape: str = "1-sqrt",
    ):
        self.peak = check_number("peak", peak, 0)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self.stable_steps = check_integer("stable_steps", stable_steps, 0)
        self.decay_steps = check_integer("decay_steps", decay_steps, 1)
        self.end = check_number("end", end, 0)
        self.shape = one_of(*_SHAPES)("shape", shape)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after so many steps."""
        step = as_number(step)
        stable = self.warmup_steps + self.stable_steps
        done = ops.clip((step - stable) / self.decay_steps, 0.0, 1.0)
        rate = self.end + (self.peak - self.end) * _SHAPES[self.shape](done)
        if self.warmup_steps == 0:
            return rate
        return ops.where(step < self.warmup_steps, self.peak * step / self.warmup_steps, rate)


_SHAPES: dict[str, Any] = {
    "linear": lambda done: 1 - done,
    "cosine": half_cosine,
    "1-sqrt": lambda done: 1 - ops.sqrt(done),
    "1-square": lambda done: 1 - ops.square(done),
}


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
        """Return the learning rate after so many steps."""
        step = as_number(step)
        left = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        falling = ops.clip(left, 0.0, 1.0) ** self.power
        if self.warmup_steps == 0:
            return self.peak * falling
        rising = (step + 1) / self.warmup_steps
        return self.peak * ops.where(step < self.warmup_steps, rising, falling)
