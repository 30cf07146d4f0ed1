"""Learning rates that go up and down in straight lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfopt.checks import check_number, one_of
from keras_tfopt.rule import register
from keras_tfopt.schedules.schedule import Schedule, as_number


@register
class CyclicalLearningRate(Schedule):
    r"""Go up and down in straight lines, to peaks that a function scales.

    $$
    c = \Bigl\lfloor 1 + \frac{s}{2k} \Bigr\rfloor, \quad
    \eta(s) = \eta_0 + (\eta_1 - \eta_0) \Bigl(1 - \Bigl|\frac{s}{k} - 2c + 1\Bigr|\Bigr) f(c)
    $$

    Args:
        initial_learning_rate: $\eta_0$, number >= 0, at the ends of a cycle.
        maximal_learning_rate: $\eta_1$, number >= 0, in the middle of a cycle.
        step_size: $k$, number > 0 of steps in half a cycle.
        scale_fn: $f$, a function of a floating-point tensor. It is saved if it is registered with
            `keras.saving.register_keras_serializable`.
        scale_mode: What the function is given: "cycle" for $c$, which is 1 in the first cycle, or
            "iterations" for $s$. Defaults to "cycle".
        name: Name of the schedule.

    Example:

    >>> rate = keras_tfopt.schedules.CyclicalLearningRate(1e-4, 1e-2, 2000, lambda c: 1 / c)

    Reference: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).

    Differences: from `tensorflow_addons.optimizers.CyclicalLearningRate`, none in the numbers; it
    takes every `scale_mode` but "cycle" for "iterations", and its configuration keeps no name.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_fn: Callable[[Any], Any],
        scale_mode: str = "cycle",
        name: str = "CyclicalLearningRate",
    ):
        self._take(initial_learning_rate, maximal_learning_rate, step_size, scale_mode, name)
        if not callable(scale_fn):
            raise TypeError(f"Argument `scale_fn` must be a function. Received: {scale_fn!r}")
        self.scale_fn = scale_fn

    def _take(self, initial: float, maximal: float, size: float, mode: str, name: str) -> None:
        """Check and keep the arguments that all cyclical schedules have."""
        self.initial_learning_rate = check_number("initial_learning_rate", initial, 0)
        self.maximal_learning_rate = check_number("maximal_learning_rate", maximal, 0)
        self.step_size = check_number("step_size", size, 0, left_open=True)
        self.scale_mode = one_of("cycle", "iterations")("scale_mode", mode)
        self.name = name

    def _scale(self, number: Any) -> Any:
        """Return the factor of the peak, from the number of the cycle or of the step."""
        return self.scale_fn(number)

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after so many steps."""
        step = as_number(step)
        cycle = ops.floor(1 + step / (2 * self.step_size))
        height = ops.maximum(1 - ops.abs(step / self.step_size - 2 * cycle + 1), 0.0)
        span = self.maximal_learning_rate - self.initial_learning_rate
        scale = self._scale(cycle if self.scale_mode == "cycle" else step)
        return self.initial_learning_rate + span * height * scale


@register
class TriangularCyclicalLearningRate(CyclicalLearningRate):
    r"""Go up and down in straight lines, always to the same peak.

    $$
    c = \Bigl\lfloor 1 + \frac{s}{2k} \Bigr\rfloor, \quad
    \eta(s) = \eta_0 + (\eta_1 - \eta_0) \Bigl(1 - \Bigl|\frac{s}{k} - 2c + 1\Bigr|\Bigr)
    $$

    Args:
        initial_learning_rate: $\eta_0$, number >= 0, at the ends of a cycle.
        maximal_learning_rate: $\eta_1$, number >= 0, in the middle of a cycle.
        step_size: $k$, number > 0 of steps in half a cycle.
        scale_mode: "cycle" or "iterations", which makes no difference here. Defaults to "cycle".
        name: Name of the schedule.

    Example:

    >>> rate = keras_tfopt.schedules.TriangularCyclicalLearningRate(1e-4, 1e-2, 2000)

    Reference: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).

    Differences: from `tensorflow_addons.optimizers.TriangularCyclicalLearningRate`, none in the
    numbers.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "cycle",
        name: str = "TriangularCyclicalLearningRate",
    ):
        self._take(initial_learning_rate, maximal_learning_rate, step_size, scale_mode, name)

    def _scale(self, number: Any) -> Any:
        return 1.0


@register
class Triangular2CyclicalLearningRate(TriangularCyclicalLearningRate):
    r"""Go up and down in straight lines, to half the height in each cycle.

    $$
    c = \Bigl\lfloor 1 + \frac{s}{2k} \Bigr\rfloor, \quad \eta(s) =
    \eta_0 + (\eta_1 - \eta_0) \Bigl(1 - \Bigl|\frac{s}{k} - 2c + 1\Bigr|\Bigr) 2^{1 - c}
    $$

    Args:
        initial_learning_rate: $\eta_0$, number >= 0, at the ends of a cycle.
        maximal_learning_rate: $\eta_1$, number >= 0, in the middle of the first cycle.
        step_size: $k$, number > 0 of steps in half a cycle.
        scale_mode: "cycle", or "iterations" for $2^{1 - s}$, which falls to nothing in a few steps.
            Defaults to "cycle".
        name: Name of the schedule.

    Example:

    >>> rate = keras_tfopt.schedules.Triangular2CyclicalLearningRate(1e-4, 1e-2, 2000)

    Reference: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).

    Differences: from `tensorflow_addons.optimizers.Triangular2CyclicalLearningRate`, none in the
    numbers.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "cycle",
        name: str = "Triangular2CyclicalLearningRate",
    ):
        self._take(initial_learning_rate, maximal_learning_rate, step_size, scale_mode, name)

    def _scale(self, number: Any) -> Any:
        return 0.5 ** (number - 1)


@register
class ExponentialCyclicalLearningRate(CyclicalLearningRate):
    r"""Go up and down in straight lines, to peaks that fall exponentially.

    $$
    c = \Bigl\lfloor 1 + \frac{s}{2k} \Bigr\rfloor, \quad \eta(s) =
    \eta_0 + (\eta_1 - \eta_0) \Bigl(1 - \Bigl|\frac{s}{k} - 2c + 1\Bigr|\Bigr) \gamma^s
    $$

    Args:
        initial_learning_rate: $\eta_0$, number >= 0, at the ends of a cycle.
        maximal_learning_rate: $\eta_1$, number >= 0, in the middle of a cycle, before it falls.
        step_size: $k$, number > 0 of steps in half a cycle.
        scale_mode: "iterations", or "cycle" for $\gamma^c$. Defaults to "iterations".
        gamma: $\gamma$, number > 0. Defaults to 1.0.
        name: Name of the schedule.

    Example:

    >>> rate = keras_tfopt.schedules.ExponentialCyclicalLearningRate(1e-4, 1e-2, 2000, gamma=0.9999)

    Reference: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).

    Differences: from `tensorflow_addons.optimizers.ExponentialCyclicalLearningRate`, none in the
    numbers.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "iterations",
        gamma: float = 1.0,
        name: str = "ExponentialCyclicalLearningRate",
    ):
        self._take(initial_learning_rate, maximal_learning_rate, step_size, scale_mode, name)
        self.gamma = check_number("gamma", gamma, 0, left_open=True)

    def _scale(self, number: Any) -> Any:
        return self.gamma**number
