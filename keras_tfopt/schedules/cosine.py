"""Learning rates that rise once, or once in each cycle, and fall by a cosine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.checks import check_integer, check_number, one_of
from keras_tfopt.rule import register
from keras_tfopt.schedules.schedule import Schedule, as_number, half_cosine


@register
class SGDR(Schedule):
    r"""Fall by a cosine, over and over, each time from a new peak.

    A cycle of $N$ steps with the peak $\eta_1$ is, $s$ steps after its start,

    $$
    \eta(s) = \begin{cases}
      \eta_0 + (\eta_1 - \eta_0) \frac{s}{W} & s < W \\
      \eta_2 + (\eta_1 - \eta_2)
        \left( \frac{1}{2} \Bigl( 1 + \cos \pi \frac{s - W}{N - W} \Bigr) \right)^p & s \leq N
    \end{cases}
    $$

    After the last cycle the learning rate stays what it is at its end.

    Args:
        peak: $\eta_1$, number >= 0, or a list of one for each cycle.
        cycle_steps: $N$ of each cycle, a list of integers > `warmup_steps`; of one number, there is
            one cycle.
        warmup_steps: $W$, integer >= 0. Defaults to 0.
        start: $\eta_0$, number >= 0. Defaults to 0.
        end: $\eta_2$, number >= 0. Defaults to 0.
        power: $p$, number > 0. Defaults to 1.

    Example:

    >>> rate = keras_tfopt.schedules.SGDR([0.1, 0.05, 0.025], [1000, 2000, 4000])

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017).

    Differences: `keras.optimizers.schedules.CosineDecayRestarts` has no warm-up, and cycles without
    an end, whose lengths and peaks follow by factors.
    """

    def __init__(
        self,
        peak: float | Sequence[float],
        cycle_steps: int | Sequence[int],
        warmup_steps: int = 0,
        start: float = 0.0,
        end: float = 0.0,
        power: float = 1.0,
    ):
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        lengths = cycle_steps if isinstance(cycle_steps, (list, tuple)) else [cycle_steps]
        peaks = peak if isinstance(peak, (list, tuple)) else [peak] * len(lengths)
        if not lengths or len(peaks) != len(lengths):
            raise ValueError(
                "Arguments `peak` and `cycle_steps` must have one number for each cycle. Received: "
                f"peak={peak!r}, cycle_steps={cycle_steps!r}"
            )
        self.peak: Any = [check_number("peak", value, 0) for value in peaks]
        least = self.warmup_steps + 1
        self.cycle_steps = [check_integer("cycle_steps", value, least) for value in lengths]
        self._cycles = list(zip(self.peak, self.cycle_steps, strict=True))
        self.start = check_number("start", start, 0)
        self.end = check_number("end", end, 0)
        self.power = check_number("power", power, 0, left_open=True)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after so many steps."""
        step = as_number(step)
        rate = self._cycle(step, *self._cycles[0])
        begin = 0
        for (_, before), cycle in zip(self._cycles, self._cycles[1:], strict=False):
            begin += before
            rate = ops.where(step < begin, rate, self._cycle(step - begin, *cycle))
        return rate

    def _cycle(self, step: Any, peak: float, steps: int) -> Any:
        """Return the learning rate in a cycle after some steps since its start."""
        done = ops.clip((step - self.warmup_steps) / (steps - self.warmup_steps), 0.0, 1.0)
        falling = self.end + (peak - self.end) * half_cosine(done) ** self.power
        if self.warmup_steps == 0:
            return falling
        rising = self.start + (peak - self.start) * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, rising, falling)


@register
class WarmUpCosineDecay(SGDR):
    r"""Rise to a peak in a straight line, then fall by a cosine.

    $$
    \eta(s) = \begin{cases}
      \eta_0 + (\eta_1 - \eta_0) \frac{s}{W} & s < W \\
      \eta_2 + (\eta_1 - \eta_2)
        \left( \frac{1}{2} \Bigl( 1 + \cos \pi \frac{s - W}{N - W} \Bigr) \right)^p & s \leq N
    \end{cases}
    $$

    and $\eta_2$ after that.

    Args:
        peak: $\eta_1$, number >= 0.
        warmup_steps: $W$, integer >= 0.
        total_steps: $N$, integer > `warmup_steps`.
        start: $\eta_0$, number >= 0. Defaults to 0.
        end: $\eta_2$, number >= 0. Defaults to 0.
        power: $p$, number > 0. Defaults to 1.

    Example:

    >>> rate = keras_tfopt.schedules.WarmUpCosineDecay(1e-3, 500, 10_000)

    Reference: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017),
    for the cosine; Goyal et al., "Accurate, Large Minibatch SGD" (2017), for the warm-up.

    Differences: `keras.optimizers.schedules.CosineDecay` counts its `decay_steps` from the end of
    the warm-up, and has no power.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        total_steps: int,
        start: float = 0.0,
        end: float = 0.0,
        power: float = 1.0,
    ):
        warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self.total_steps = check_integer("total_steps", total_steps, warmup_steps + 1)
        super().__init__([peak], [self.total_steps], warmup_steps, start, end, power)
        (self.peak,) = self.peak


@register
class OneCycle(Schedule):
    r"""Rise to a peak, fall again, and end far below the start: one cycle for all of training.

    With $\eta_0 = \eta_1 / d$ and $\eta_2 = \eta_0 / D$, and $a N$ and $b N$ rounded down to whole
    steps, the learning rate goes by half cosines from $\eta_0$ at the first step to $\eta_1$ after
    $a N$ steps and $\eta_2$ after $N$; or in straight lines from $\eta_0$ to $\eta_1$ after $a N$
    steps, to $\eta_0$ after $b N$ and to $\eta_2$ after $N$. There it stays.

    Args:
        peak: $\eta_1$, number >= 0.
        total_steps: $N$, integer >= 1.
        rising: $a$, the part of the steps in which it rises, in [0, 1]. Defaults to 0.3.
        div_factor: $d$, number > 0. Defaults to 25.
        final_div_factor: $D$, number > 0. Defaults to 1e4.
        shape: "cosine" or "linear". Defaults to "cosine".
        returned: $b$, the part of the steps after which a linear cycle is back at its start, in
            [`rising`, 1]. Defaults to 0.85.

    Example:

    >>> rate = keras_tfopt.schedules.OneCycle(0.1, total_steps=10_000)

    Reference: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using
    Large Learning Rates" (2018).

    Differences: none from `optax.cosine_onecycle_schedule` and `optax.linear_onecycle_schedule`.
    There is none in `keras.optimizers.schedules`.
    """

    def __init__(
        self,
        peak: float,
        total_steps: int,
        rising: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        shape: str = "cosine",
        returned: float = 0.85,
    ):
        self.peak = check_number("peak", peak, 0)
        self.total_steps = check_integer("total_steps", total_steps, 1)
        self.rising = check_number("rising", rising, 0, 1)
        self.div_factor = check_number("div_factor", div_factor, 0, left_open=True)
        self.final_div_factor = check_number(
            "final_div_factor", final_div_factor, 0, left_open=True
        )
        self.shape = one_of("cosine", "linear")("shape", shape)
        self.returned = check_number("returned", returned, 0, 1)
        if shape == "linear":
            check_number("returned", returned, self.rising, 1)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after so many steps."""
        step = as_number(step)
        first = self.peak / self.div_factor
        corners = [(0, first), (int(self.rising * self.total_steps), self.peak)]
        if self.shape == "linear":
            corners.append((int(self.returned * self.total_steps), first))
        corners.append((self.total_steps, first / self.final_div_factor))
        rate = ops.full_like(step, corners[-1][1])
        for (begin, left), (end, right) in reversed(list(zip(corners, corners[1:], strict=False))):
            if begin == end:
                continue
            done = ops.clip((step - begin) / (end - begin), 0.0, 1.0)
            weight = half_cosine(done) if self.shape == "cosine" else 1 - done
            rate = ops.where(step < end, right + (left - right) * weight, rate)
        return rate
