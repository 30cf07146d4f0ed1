from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import check_arguments, decoded, encoded, own_parameters
from keras_tfopt.engine.state.state import widest


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Base class of schedules that keep each argument of the constructor under its name.

    For an unknown argument, the constructor suggests similar names.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the names of arguments before the constructor sees them."""
        check_arguments(cls.__name__, kwargs, own_parameters(cls))
        return super().__new__(cls)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, serializable."""
        return {name: encoded(getattr(self, name)) for name in own_parameters(type(self))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the schedule that `get_config` described."""
        return cls(**{name: decoded(value) for name, value in config.items()})


def as_number(step: Any) -> Any:
    """Return the number of a step as a floating-point tensor.

    In half precision, large numbers would be rounded.
    """
    return ops.cast(step, widest(["float32", keras.backend.floatx()]))


def half_cosine(done: Any) -> Any:
    """Return half a cosine wave, which falls from 1 to 0 as `done` goes from 0 to 1."""
    return 0.5 * (1 + ops.cos(math.pi * done))
