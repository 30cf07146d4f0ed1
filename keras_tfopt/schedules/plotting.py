from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_tfopt.checks import check_integer
from keras_tfopt.engine import as_schedule, changes

POINTS = 1000


def plot(schedule: Any, steps: int, ax: Any = None, **options: Any) -> Any:
    """Draw the values of a schedule in the first steps of training; needs matplotlib.

    Args:
        schedule: A schedule, or a function of the number of steps done.
        steps: Number of steps, integer >= 1. If there are more, a thousand of them are computed.
        ax: The `matplotlib.axes.Axes` to draw in, so that several schedules share one. Defaults to
            None: those of a new figure.
        **options: Of `Axes.plot`, such as `label`.

    Returns:
        The `matplotlib.axes.Axes`.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if `schedule` is no schedule.

    Example:

    >>> rate = keras_tfopt.schedules.OneCycle(0.1, total_steps=1000)
    >>> keras_tfopt.schedules.plot(rate, 1200).figure.savefig("rate.png")
    """
    schedule = as_schedule(schedule)
    if not changes(schedule) or not callable(schedule):
        raise TypeError(
            "Argument `schedule` must be a schedule or a function of the number of steps. "
            f"Received: {schedule!r}"
        )
    steps = check_integer("steps", steps, 1)
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "keras_tfopt.schedules.plot needs matplotlib: pip install matplotlib"
            ) from error
        ax = pyplot.figure().add_subplot()
    numbers = np.unique(np.linspace(0, steps - 1, min(steps, POINTS)).astype(int)).tolist()
    values = [float(keras.ops.convert_to_numpy(schedule(number))) for number in numbers]
    ax.plot(numbers, values, **options)
    ax.set_xlabel("step")
    ax.set_ylabel("learning rate")
    return ax
