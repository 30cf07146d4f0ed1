"""Check the options that every optimizer takes."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.arguments.suggestions import check_arguments
from keras_tfopt.engine.settings import switched

# Options of all optimizers, with defaults. Keras's base class has no signature on TensorFlow.
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(keras.optimizers.SGD).parameters.items()
    if name not in ("learning_rate", "momentum", "nesterov", "name", "kwargs")
} | {
    "row_variables": r"(^|/)embeddings$",
    "master_weights": False,
    "maximize": False,
    "clip_unitwise": None,
    "shard_state": False,
    "groups": None,
    "slot_dtype": "float32",
}
# Options that a wrapper does not have: they are read from the optimizer inside.
CLIPPING_AND_DECAY = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm", "clip_unitwise")
AVERAGING = ("use_ema", "ema_momentum", "ema_overwrite_frequency")

_CHANGING = (keras.optimizers.schedules.LearningRateSchedule, keras.Variable)


def is_number(value: Any) -> bool:
    """Return whether this is a number, and not True or False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return a number as a float, infinite if it is an integer beyond all of them."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def in_float32(number: float) -> float:
    """Return what a number is in float32, in which steps compute: it may be 0 or infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(number))


def check_finite(text: str, value: Any, *, positive: bool) -> float:
    """Return a finite number > 0 or >= 0, or raise an error that begins with this text."""
    message = f"{text}. Received: {value!r}"
    if not is_number(value):
        raise TypeError(message)
    number = as_float(value)
    if not (number > 0 if positive else number >= 0) or math.isinf(number):
        raise ValueError(message)
    rounded = in_float32(number)
    if math.isinf(rounded) or (positive and rounded == 0):
        raise ValueError(f"{text}; in float32 it is {rounded:g}. Received: {value!r}")
    return number


# Function that is asked before a number out of range is refused. It gets the argument's name, the
# number and the error's message, and returns whether to accept the number.
_tolerance: contextvars.ContextVar[Callable[[str, float, str], bool] | None]
_tolerance = contextvars.ContextVar("tolerance", default=None)


def tolerating(
    takes: Callable[[str, float, str], bool],
) -> contextlib.AbstractContextManager[None]:
    """Accept numbers out of range in this context if `takes(name, number, message)`."""
    return switched(_tolerance, takes)


def out_of_range(name: str, value: float, message: str) -> None:
    """Raise an error for a number out of range, unless it is tolerated."""
    takes = _tolerance.get()
    if takes is None or not math.isfinite(value) or not takes(name, value, message):
        raise ValueError(message)


def changes(value: Any) -> bool:
    """Return whether a hyperparameter is not a number, but gives one at each step."""
    return isinstance(value, _CHANGING) or (callable(value) and takes(value))


def is_function_of_step(value: Any) -> bool:
    """Return whether a hyperparameter is a function of the number of steps."""
    if not callable(value) or isinstance(value, _CHANGING):
        return False
    return takes(value, 1) and not takes(value)


def takes(function: Callable, *arguments: Any) -> bool:
    """Return whether this is a function, not a class, and can be called with these arguments."""
    if isinstance(function, type):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def check_countable(name: str, value: Any) -> None:
    """Raise an error for an integer beyond 32 bits, in which steps are counted."""
    if value >= 2**31:
        raise ValueError(f"Argument `{name}` must be less than 2**31. Received: {value!r}")


def check_scalar(name: str, value: Any) -> None:
    """Raise an error for a variable that holds several numbers."""
    if isinstance(value, keras.Variable) and tuple(value.shape) != ():
        raise ValueError(f"Argument `{name}` must be a scalar variable. Received: {value!r}")


def current(value: Any, iterations: Any) -> Any:
    """Return the number at a step of a hyperparameter that `changes`."""
    if isinstance(value, keras.Variable):
        return value.value
    is_schedule = isinstance(value, keras.optimizers.schedules.LearningRateSchedule)
    return check_found(value(iterations) if is_schedule else value(), value)


def check_found(found: Any, source: Any) -> Any:
    """Return what a schedule or function has returned, or raise an error if it is no scalar."""
    shape = getattr(found, "shape", ())
    is_unknown = getattr(shape, "rank", 0) is None  # in graphs of TensorFlow
    if not is_unknown and tuple(shape) or not (is_number(found) or hasattr(found, "dtype")):
        raise TypeError(
            "Schedules and functions as hyperparameters must return a number or a scalar tensor. "
            f"Received: {found!r} from {source!r}"
        )
    return found


def check_savable(argument: str, value: Any) -> None:
    """Raise an error for functions that Keras could not find again by their names."""
    if isinstance(value, (list, tuple)):
        for item in value:
            check_savable(argument, item)
    value = value.function if isinstance(value, FunctionOfStep) else value
    if not callable(value) or isinstance(value, _CHANGING):
        return
    name = getattr(value, "__name__", None)
    if name is None or keras.saving.get_registered_name(value) == name:
        raise ValueError(
            f"Argument `{argument}` is a function that cannot be saved by its name. Decorate it "
            "with `@keras.saving.register_keras_serializable()`, or pass a number, a schedule or a "
            f"variable. Received: {value!r}"
        )


def unregistered(name: Any) -> ValueError:
    """Return the error for a function in a configuration that Keras does not find by its name."""
    return ValueError(
        "A function in a configuration must be registered: import the module that does that, with "
        "`@keras.saving.register_keras_serializable()`, or pass the function in `custom_objects`. "
        f"Received: {name!r}"
    )


@keras.saving.register_keras_serializable("keras_tfopt")
class FunctionOfStep(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is a function of the number of steps done, given as a float, 0 at first."""

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __call__(self, step: Any) -> Any:
        """Return the value of the function at this step."""
        try:
            return self.function(ops.cast(step, keras.backend.floatx()))
        except Exception as error:
            raise TypeError(
                "A schedule must be a function of the number of steps that computes with tensors "
                f"of {keras.backend.backend()}: write it with keras.ops, or use one of "
                f"keras.optimizers.schedules. Received: {self.function!r}, which raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def get_config(self) -> dict[str, Any]:
        """Return the name under which the function is registered, or raise an error."""
        check_savable("function", self.function)
        return {"function": keras.saving.get_registered_name(self.function)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FunctionOfStep:
        """Return the schedule that `get_config` described."""
        function = keras.saving.get_registered_object(config["function"])
        if function is None:
            raise unregistered(config["function"])
        return cls(function)


def as_schedule(value: Any) -> Any:
    """Return a function of the step as a schedule, and anything else unchanged."""
    return FunctionOfStep(value) if is_function_of_step(value) else value


def check_learning_rate(value: Any) -> Any:
    value = as_schedule(value)
    if changes(value) and not isinstance(value, keras.Variable):
        return value
    if not is_number(value):
        raise TypeError(
            "Argument `learning_rate` must be a number >= 0, a "
            "keras.optimizers.schedules.LearningRateSchedule, or a function of the number of "
            f"steps or without arguments. Received: {value!r}"
        )
    value = as_float(value)
    if not (value >= 0 and math.isfinite(in_float32(value))):
        message = f"Argument `learning_rate` must be finite and >= 0. Received: {value!r}"
        out_of_range("learning_rate", value, message)
    return value


def check_base(cls: type, base: dict[str, Any]) -> dict[str, Any]:
    """Return options of the base, or raise an error for wrong ones; Keras checks few of them."""
    base = dict(base)
    check_arguments(cls.__name__, base, all_arguments(cls))
    for name in ("weight_decay", *CLIPPING, "loss_scale_factor"):
        positive = name != "weight_decay"
        text = f"Argument `{name}` must be None or a finite number {'>' if positive else '>='} 0"
        if base.get(name) is not None:
            base[name] = check_finite(text, base[name], positive=positive)
    for name, least in (("gradient_accumulation_steps", 2), ("ema_overwrite_frequency", 1)):
        if base.get(name) is not None:
            _check_steps(name, base[name], least)
    if "use_ema" in base:
        check_switch("use_ema", base["use_ema"])
    momentum = base.get("ema_momentum", DEFAULTS["ema_momentum"])
    if not (is_number(momentum) and 0 <= momentum <= 1):
        raise ValueError(f"Argument `ema_momentum` must lie in [0, 1]. Received: {momentum!r}")
    return base


def _check_steps(name: str, value: Any, least: int) -> None:
    message = f"Argument `{name}` must be None or an integer >= {least}. Received: {value!r}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
    check_countable(name, value)


def check_switch(name: str, value: Any) -> bool:
    """Return an option that is True or False, or raise an error."""
    if not isinstance(value, bool):
        raise TypeError(f"Argument `{name}` must be a bool. Received: {value!r}")
    return value


def named_parameters(constructor: Callable) -> list[str]:
    """Return the names of a constructor's parameters, without `self` and `**kwargs`."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return [p.name for p in parameters if p.kind in kinds]


def own_parameters(cls: type) -> list[str]:
    """Return the names of the constructor's arguments that are the rule's own.

    They include arguments that it passes on by `**kwargs` to a base class.
    """
    names: dict[str, None] = {}
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if constructor is None:
            continue
        if "is_engine" in vars(base) or names and base.__module__.startswith("keras."):
            break
        fields = getattr(constructor, "fields", None)
        if fields is not None:
            first = [name for name in fields[:1] if name == "learning_rate"]
            return list(dict.fromkeys([*first, *names, *fields]))
        names.update(dict.fromkeys(named_parameters(constructor)))
        parameters = inspect.signature(constructor).parameters.values()
        if all(p.kind != inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return list(names)


def all_arguments(cls: Any) -> list[str]:
    """Return the names of all arguments of a constructor: its own, then options of the base."""
    options = ("name", *DEFAULTS) if getattr(cls, "takes_options", False) else ()
    return list(dict.fromkeys([*own_parameters(cls), *options]))


_again = contextvars.ContextVar("computing_again", default=False)


def computing_again() -> contextlib.AbstractContextManager[None]:
    """Skip checks of numbers in this context: tensors stand for numbers that were checked."""
    return switched(_again, True)


def is_computed_again() -> bool:
    """Return whether this is the context of `computing_again`."""
    return _again.get()
