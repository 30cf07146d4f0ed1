"""Functions of the global step for `AddSignOptimizer` and `PowerSignOptimizer`."""

from __future__ import annotations

from typing import Any

from keras_tfopt import schedules


def get_linear_decay_fn(decay_steps: int) -> Any:
    """Return a decay in a straight line: `keras_tfopt.schedules.LinearSignDecay`.

    Args:
        decay_steps: Steps until it is 0, integer >= 1.
    """
    return schedules.LinearSignDecay(decay_steps)


def get_cosine_decay_fn(
    decay_steps: int, num_periods: float = 0.5, zero_after: float | None = None
) -> Any:
    """Return a decay by a cosine: `keras_tfopt.schedules.CosineSignDecay`.

    Args:
        decay_steps: As of that class.
        num_periods: As of that class. Defaults to 0.5.
        zero_after: As of that class. Defaults to None.
    """
    return schedules.CosineSignDecay(decay_steps, num_periods, zero_after)


def get_restart_decay_fn(
    decay_steps: int, num_periods: float = 1, zero_after: float | None = None
) -> Any:
    """Return a decay by half cosines, over and over: `keras_tfopt.schedules.RestartSignDecay`.

    Args:
        decay_steps: As of that class.
        num_periods: As of that class. Defaults to 1.
        zero_after: As of that class. Defaults to None.
    """
    return schedules.RestartSignDecay(decay_steps, num_periods, zero_after)
