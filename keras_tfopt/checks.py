"""Checks of arguments: each returns the value, or raises an error that names the argument."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from keras_tfopt.engine import (
    as_float,
    as_schedule,
    changes,
    check_countable,
    check_scalar,
    in_float32,
    is_computed_again,
    is_function_of_step,
    is_variable,
    out_of_range,
)


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    left_open: bool = False,
    right_open: bool = False,
) -> float:
    """Return `value` as a float, or raise an error that names the argument and its range.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.

    Raises:
        TypeError: if `value` is no number.
        ValueError: if it is out of range or not finite, as a float or in float32.

    Example:

    >>> keras_tfopt.check_number("beta", 1.0, 0, 1, right_open=True)
    ValueError: Argument `beta` must be a number in [0, 1). Received: 1.0
    """
    if is_computed_again():
        return value
    left, right = "(" if left_open or low == -math.inf else "[", ")"
    if not right_open and high != math.inf:
        right = "]"
    allowed = f"a number in {left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be {allowed}. Received: {value!r}")
    value = as_float(value)
    above = value > low if left_open else value >= low
    below = value < high if right_open else value <= high
    rounded = in_float32(value)
    if not (above and below and math.isfinite(value)):
        out_of_range(name, value, f"Argument `{name}` must be {allowed}. Received: {value!r}")
    elif (
        math.isinf(rounded)
        or (left_open and rounded == low == 0)
        or (right_open and rounded == high)
    ):
        message = f"Argument `{name}` must be {allowed}; in float32 it is {rounded:g}"
        out_of_range(name, value, f"{message}. Received: {value!r}")
    return value


def check_hyperparameter(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    left_open: bool = False,
    right_open: bool = False,
) -> Any:
    """Return `value` as `check_number` does, or something that gives a number at each step.

    The latter is a `keras.optimizers.schedules.LearningRateSchedule` or a function, called with the
    number of steps done; a scalar `keras.Variable`; or a function without arguments, which compiled
    steps read once.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.

    Raises:
        TypeError: if `value` is no number.
        ValueError: if it is out of range or not finite, as a float or in float32.
    """
    if is_computed_again():
        return value
    value = as_schedule(value)
    if not changes(value):
        try:
            return check_number(name, value, low, high, left_open=left_open, right_open=right_open)
        except TypeError as error:
            also = ", a schedule, a scalar variable or a function of the step. Received:"
            raise TypeError(str(error).replace(". Received:", also)) from None
    check_scalar(name, value)
    return value


def check_function_of_step(name: str, value: Any, low: float) -> Any:
    """Return `value` as `check_hyperparameter` does, but a function of the step unchanged."""
    return value if is_function_of_step(value) else check_hyperparameter(name, value, low)


def at_step(value: Any, step: Any) -> Any:
    """Return the value of a hyperparameter at step number `step`; for `scalars`."""
    return value(step) if is_function_of_step(value) else value


def check_global_step(value: Any) -> Any:
    """Return `value`, or raise an error if it is neither None nor a scalar variable.

    Args:
        value: What was given.

    Raises:
        TypeError: if it is neither None nor a scalar variable.
    """
    if value is not None and not (is_variable(value) and tuple(value.shape) == ()):
        raise TypeError(
            "Argument `global_step` must be None (the optimizer's own count) or a scalar "
            f"keras.Variable or tf.Variable. Received: {value!r}"
        )
    return value


def check_integer(name: str, value: Any, low: int) -> int:
    """Return `value` as an integer, or raise an error that names the argument and its range.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed integer.

    Raises:
        TypeError: if `value` is no integer.
        ValueError: if it is less than `low`, or more than steps are counted to, 2**31 - 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `{name}` must be an integer >= {low}. Received: {value!r}")
    if value < low:
        message = f"Argument `{name}` must be an integer >= {low}. Received: {value!r}"
        out_of_range(name, int(value), message)
    check_countable(name, value)
    return int(value)


def check_bool(name: str, value: Any) -> bool:
    """Return `value`, or raise an error that names the argument.

    Args:
        name: Of the argument, for the error.
        value: What was given.

    Raises:
        TypeError: if `value` is neither True nor False.
    """
    if not isinstance(value, bool):
        raise TypeError(f"Argument `{name}` must be True or False. Received: {value!r}")
    return value


def one_of(*choices: Any) -> Callable[[str, Any], Any]:
    """Return a check that a value is one of these."""

    def check(name: str, value: Any) -> Any:
        # Types come first, as arrays and variables compare each of their numbers.
        if not any(isinstance(value, type(one)) and value == one for one in choices):
            raise ValueError(f"Argument `{name}` must be one of {choices}. Received: {value!r}")
        return value

    return check
