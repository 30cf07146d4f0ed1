"""Checks of the options that every optimizer takes."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras


def compile_patterns(argument: str, patterns: Any) -> list[re.Pattern]:
    """Regular expressions from None, a string, a compiled pattern, or several of them."""
    if patterns is None:
        return []
    if isinstance(patterns, (str, re.Pattern)):
        patterns = [patterns]
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (TypeError, re.error) as error:
        raise type(error if isinstance(error, TypeError) else ValueError())(
            f"Argument `{argument}` must be a regular expression or a list of them ({error}). "
            f"Received: {patterns!r}"
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def changes(value: Any) -> bool:
    """Whether a hyperparameter is not a number but something that gives one at each step."""
    if isinstance(value, (keras.optimizers.schedules.LearningRateSchedule, keras.Variable)):
        return True
    return callable(value) and _takes(value)


def is_function_of_step(value: Any) -> bool:
    """Whether a hyperparameter is a function that a rule calls itself, with the step's number."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if not callable(value) or isinstance(value, (schedule, keras.Variable)):
        return False
    return _takes(value, 1) and not _takes(value)


def _takes(function: Callable, *arguments: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def current(value: Any, iterations: Any) -> Any:
    """What such a hyperparameter is at a step."""
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value(iterations)
    if isinstance(value, keras.Variable):
        return value.value
    return value()


def check_savable(argument: str, value: Any) -> None:
    """Refuses a function that Keras could not find again by its name."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if not callable(value) or isinstance(value, (schedule, keras.Variable)):
        return
    name = getattr(value, "__name__", None)
    if name is None or keras.saving.get_registered_name(value) == name:
        raise ValueError(
            f"Argument `{argument}` is a function that cannot be saved by its name. Decorate it "
            "with `@keras.saving.register_keras_serializable()`, or pass a number, a schedule or a "
            f"variable. Received: {value!r}"
        )


def check_learning_rate(value: Any) -> Any:
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule) or callable(value):
        return value
    if not _is_number(value):
        raise TypeError(
            "Argument `learning_rate` must be a number >= 0, a "
            "keras.optimizers.schedules.LearningRateSchedule or a callable without arguments. "
            f"Received: {value!r}"
        )
    value = float(value)
    if not value >= 0 or math.isinf(value):
        raise ValueError(f"Argument `learning_rate` must be finite and >= 0. Received: {value!r}")
    return value


def check_base(base: dict[str, Any]) -> None:
    """Keras takes most of its base options unseen; a wrong one would only show in the numbers."""
    for name in ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"):
        value = base.get(name)
        if value is None:
            continue
        lowest = ">= 0" if name == "weight_decay" else "> 0"
        if not _is_number(value):
            raise TypeError(
                f"Argument `{name}` must be None or a number {lowest}. Received: {value!r}"
            )
        if not (value >= 0 if name == "weight_decay" else value > 0) or math.isinf(value):
            raise ValueError(
                f"Argument `{name}` must be None or a finite number {lowest}. Received: {value!r}"
            )
    steps = base.get("gradient_accumulation_steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, numbers.Integral)):
        raise TypeError(
            "Argument `gradient_accumulation_steps` must be None or an integer >= 2. "
            f"Received: {steps!r}"
        )
    momentum = base.get("ema_momentum")
    if momentum is not None and not (_is_number(momentum) and 0 <= momentum <= 1):
        raise ValueError(f"Argument `ema_momentum` must lie in [0, 1]. Received: {momentum!r}")


def own_parameters(cls: type) -> list[str]:
    """Names of the constructor's arguments that are the algorithm's own.

    Those that a constructor passes on by `**kwargs` to a class that it derives from are among them.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names: dict[str, None] = {}
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None:
            continue
        if "takes_base_options" in vars(base) or names and base.__module__.startswith("keras."):
            break
        fields = getattr(constructor, "fields", None)
        if fields is not None:
            return list(dict.fromkeys(["learning_rate", *names, *fields]))
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        names.update(dict.fromkeys(p.name for p in parameters if p.kind in kinds))
        if all(p.kind != inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return list(names)


_again = contextvars.ContextVar("computing_again", default=False)


@contextlib.contextmanager
def computing_again() -> Iterator[None]:
    """In this context, checks of numbers let tensors pass: the numbers have been checked before."""
    token = _again.set(True)
    try:
        yield
    finally:
        _again.reset(token)


def is_computed_again() -> bool:
    """Whether constructors run only to compute attributes anew, from numbers that were checked."""
    return _again.get()
