from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.execution import check_arguments, own_parameters


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Abstract: a schedule whose constructor suggests arguments for names that it does not have."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the names of arguments before the constructor sees them."""
        check_arguments(cls.__name__, kwargs, own_parameters(cls))
        return super().__new__(cls)
