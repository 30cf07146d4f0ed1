"""Learning rates of recordings: functions and schedules by the names that recordings give them."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

import keras_tfopt
from integration.recordings import NotReplayable


class Following(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the number of the step, which is one more than the steps done."""

    def __init__(self, function):
        self.function = function

    def __call__(self, step):
        return self.function(keras.ops.cast(step, "float32") + 1)


class Continued(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule in a run that begins after some steps."""

    def __init__(self, schedule, done):
        self.schedule, self.done = schedule, done

    def __call__(self, step):
        return self.schedule(step + self.done)


# As the recordings spell them.
FUNCTIONS_OF_STEP: dict[str, Callable[[Any], Any]] = {
    "0.2/sqrt(T)": lambda step: 0.2 / step**0.5,
    "T/(T+1)": lambda step: step / (step + 1),
    "1/(T+1)": lambda step: 1 / (step + 1),
}


def _exponential_decay(learning_rate, decay_steps, decay_rate, staircase=False):
    return keras.optimizers.schedules.ExponentialDecay(
        learning_rate, decay_steps, decay_rate, staircase
    )


class _PolynomialDecay(keras.optimizers.schedules.PolynomialDecay):
    """Keras's without its NaN: XLA divides by multiplying, so 1 - steps / steps can be negative."""

    def __call__(self, step):
        left = keras.ops.cast(self.decay_steps - step, "float32")
        left = keras.ops.maximum(left, 0.0) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return self.end_learning_rate + span * left**self.power


def _polynomial_decay(learning_rate, decay_steps, end_learning_rate=0.0001, power=1.0, cycle=False):
    if cycle:
        raise NotReplayable("there is no counterpart of a decay in cycles")
    return _PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power)


def _piecewise_constant(boundaries, values):
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, values)


OF_TENSORFLOW: dict[str, Callable[..., Any]] = {
    "exponential_decay": _exponential_decay,
    "polynomial_decay": _polynomial_decay,
    "piecewise_constant": _piecewise_constant,
    "get_linear_decay_fn": keras_tfopt.schedules.LinearSignDecay,
    "get_cosine_decay_fn": keras_tfopt.schedules.CosineSignDecay,
    "get_restart_decay_fn": keras_tfopt.schedules.RestartSignDecay,
}


# Of optax, timm and pytorch_optimizer, which know them by the names of functions.


def _exponential_decay_of_optax(init_value: float, transition_steps: int, decay_rate: float) -> Any:
    return lambda step: init_value * decay_rate ** (step / transition_steps)


def _linear_schedule(init_value: float, end_value: float, transition_steps: int) -> Any:
    def at(step: Any) -> Any:
        return init_value + (end_value - init_value) * ops.minimum(step / transition_steps, 1.0)

    return at


def _ademamix_alpha(alpha: float, steps: int) -> Any:
    return lambda step: alpha * ops.minimum(step / steps, 1.0)


def _ademamix_beta3(beta_start: float, beta: float, steps: int) -> Any:
    start, end = math.log(beta_start), math.log(beta)

    def at(step: Any) -> Any:
        part = step / steps
        value = ops.exp(start * end / ((1 - part) * end + part * start))
        return ops.minimum(value, beta)

    return at


def _warmup_cosine(
    init_value: float, peak_value: float, warmup_steps: int, decay_steps: int, end_value: float
) -> Any:
    return keras.optimizers.schedules.CosineDecay(
        init_value,
        decay_steps - warmup_steps,
        alpha=end_value / peak_value,
        warmup_target=peak_value,
        warmup_steps=warmup_steps,
    )


OF_OTHERS: dict[str, Callable[..., Any]] = {
    "exponential_decay": _exponential_decay_of_optax,
    "linear_schedule": _linear_schedule,
    "warmup_cosine_decay_schedule": _warmup_cosine,
    "ademamix_alpha": _ademamix_alpha,
    "ademamix_beta3": _ademamix_beta3,
    # What ADOPT clips by; its exponent is an argument here.
    "power": lambda exponent: {"config": {"exponent": exponent}},
}
