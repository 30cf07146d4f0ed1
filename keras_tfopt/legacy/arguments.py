"""Translate arguments of the originals into those of the optimizers here."""

from __future__ import annotations

import contextlib
import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt import distributed, rules, wrappers
from keras_tfopt.checks import check_bool, check_integer
from keras_tfopt.engine import (
    check_scalar,
    is_function_of_step,
    is_variable,
    pattern_of,
    tolerating,
)
from keras_tfopt.engine.arguments.powers import keep_powers
from keras_tfopt.legacy.table import AT_LEAST_ZERO, POSITIVE_IS_WRONG, WITHOUT_MEANING, Row
from keras_tfopt.rules.preconditioning import check_interval
from keras_tfopt.tables import in_words_of

# Attributes in which the originals keep their arguments, as given or as tensors.
_RATES = tuple(f"_{name}" for name in ("lr", "learning_rate"))
_KEPT = ("beta1", "beta2", "beta", "epsilon", "rho", "momentum", "decay", "alpha", "eeta")
_PRIVATE = frozenset(
    {f"_{name}{kind}" for name in _KEPT for kind in ("", "_t", "_tensor")}
    | {f"{name}{kind}" for name in _RATES for kind in ("_t", "_tensor")}
    | {"_weight_decay", "_initial_accumulator_value", "_logbase", "_sign_decay_t", "_ema"}
)


class OriginalAttributes:
    """Let programs read and assign the learning rate, and refuse other attributes of the originals.

    An assignment to these would have no effect here, so it raises an error.
    """

    def _get_rate(self) -> Any:
        raise AttributeError(f"{type(self).__name__} has no learning rate of its own")

    def _set_rate(self, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} has no learning rate of its own")

    def __getattr__(self, name: str) -> Any:
        if name in _RATES:
            return self._get_rate()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RATES:
            self._set_rate(value)
        elif name in _PRIVATE and not hasattr(type(self), name):
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r} that would act. Pass the value "
                "to the constructor; a variable, or a function without arguments, may change"
            )
        else:
            super().__setattr__(name, value)


_NO_ROW = Row()

# The name of a count that never changes.
CONSTANT = "constant_global_step"

# Intervals of Shampoo. Unless they are 1, its steps depend on the number of the step.
_STEPWISE = ("svd_interval", "precond_update_interval")


class OfVariable(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is a variable, or a function of a variable with the count of steps."""

    def __init__(self, variable: Any, function: Callable[[Any], Any] | None = None):
        self.variable, self.function = variable, function

    def __call__(self, step: Any) -> Any:
        """Return the value; the optimizer's own count of steps does not matter."""
        value = ops.convert_to_tensor(self.variable)
        if self.function is None:
            return value
        return self.function(ops.cast(value, "float32") + 1)

    def get_config(self) -> dict[str, Any]:
        """Raise an error: such a learning rate cannot be saved."""
        raise NotImplementedError(
            "A learning rate that is a variable, or a function of the step, is not saved with a "
            "model. Use a keras.optimizers.schedules.LearningRateSchedule for that"
        )


class OfTable:
    """Base of the classes of the table: each is made from its row and the arguments given."""

    _kind: str
    _row: Row
    _arguments: dict[str, Any]

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments in a form that the rule or the wrapper takes."""
        return arguments

    def _keras_arguments(self) -> dict[str, Any]:
        """Return the arguments in a form that the Keras optimizer takes."""
        return self._arguments

    def _make_keras(self) -> Any:
        """Return a new Keras optimizer."""
        return build_optimizer(self._kind, self._row, self._keras_arguments())


def build_optimizer(name: str, row: Row, given: Mapping[str, Any]) -> Any:
    """Make the Keras optimizer for a name of the table and the arguments of its constructor."""
    ours: dict[str, Any] = {}
    count = _count(name, given) if "global_step" in given else None
    for argument, value in given.items():
        if argument in WITHOUT_MEANING:
            check_bool(argument, value)
        elif argument == "name":
            ours["name"] = check_name(value).replace("/", "_")  # names of Keras have no scopes
        elif argument == "global_step":
            ours["global_step"] = count
        elif argument == "learning_rate":
            ours["learning_rate"] = rate_of(value, count)
        else:
            ours[row.renamed.get(argument, argument)] = _plain(value)
    cls = getattr(owner_of(row.ours), row.ours)
    try:
        with as_in_the_original(name, row):
            optimizer = cls(**ours)
    except (TypeError, ValueError) as error:
        raise type(error)(in_words_of(row, str(error))) from error
    if row.powers:
        keep_powers(optimizer, [row.renamed[argument] for argument in row.powers])
    return optimizer


@contextlib.contextmanager
def as_in_the_original(name: str, row: Row = _NO_ROW) -> Iterator[None]:
    """Accept numbers that only the original takes, with a warning."""
    theirs = {ours: argument for argument, ours in row.renamed.items()}

    def takes(argument: str, value: float, message: str) -> bool:
        argument = theirs.get(argument, argument)
        checked = argument in row.checked and (value <= 0 or argument in POSITIVE_IS_WRONG)
        whole = isinstance(value, int) and argument != "staleness"
        if checked or whole or argument in AT_LEAST_ZERO:
            return False
        taken.append(in_words_of(row, message))
        return True

    taken: list[str] = []
    with tolerating(takes):
        yield
    for message in taken:
        text = f"{name}: {message}. It is used as it is, as in the original"
        warnings.warn(text, stacklevel=6)  # where the optimizer was made


def owner_of(name: str) -> Any:
    """Return the part of the package that has a class of this name."""
    return next(part for part in (rules, wrappers, distributed) if hasattr(part, name))


def check_name(name: Any) -> str:
    """Return the name of an optimizer, or raise an error if it is empty."""
    if not name:
        raise ValueError(f"Argument `name` must be a string that is not empty. Received: {name!r}")
    if not isinstance(name, str):
        raise TypeError(f"Argument `name` must be a string. Received: {name!r}")
    return name


def _plain(value: Any) -> Any:
    """Return a hyperparameter in a form that the optimizers here take."""
    if isinstance(value, (keras.Variable, numbers.Number, str)):
        return value
    if is_variable(value):
        return lambda: ops.convert_to_tensor(value)
    if ops.is_tensor(value) and tuple(value.shape) == ():
        return value.item() if hasattr(value, "item") else float(value)
    return value


def rate_of(value: Any, global_step: Any = None) -> Any:
    """Return a learning rate in a form that Keras optimizers take."""
    if is_variable(value):
        check_scalar("learning_rate", value)
        return OfVariable(value)
    if is_function_of_step(value):
        if global_step is None:
            raise TypeError(
                "Argument `learning_rate` must be a number, a variable, a schedule or a function "
                f"without arguments. Received: {value!r}"
            )
        return OfVariable(global_step, value)
    return _plain(value)


def _count(name: str, given: Mapping[str, Any]) -> Any:
    """Return the variable that counts steps; for a number, a variable that never changes."""
    value = given["global_step"]
    if is_variable(value) or value is None:
        return value
    # A learning rate may have been passed in its place by mistake. 0.001 is no count of steps; 1.0
    # may be one.
    whole = isinstance(value, numbers.Real) and float(value).is_integer()
    if isinstance(value, bool) or not whole:
        raise TypeError(
            "Argument `global_step` must be a scalar variable or a whole number. Received: "
            f"{value!r}"
        )
    check_integer("global_step", int(value), 0)
    if _matters(given):
        warnings.warn(
            f"{name} takes the number of the step from `global_step`, and the constant "
            f"{int(value)} never changes. Pass the variable that `minimize` counts up",
            stacklevel=5,
        )
    return keras.Variable(int(value), dtype="int32", trainable=False, name=CONSTANT)


def _matters(given: Mapping[str, Any]) -> bool:
    """Return whether steps of this optimizer depend on the number of the step."""
    if "svd_interval" not in given:
        return True
    for argument in _STEPWISE:
        check_interval(argument, given[argument])
    return any(is_function_of_step(v) for v in given.values()) or any(
        given[argument] != 1 for argument in _STEPWISE
    )


def chosen_dims(given: Any) -> list[tuple[Any, str, list[int]]]:
    """Return the items of `vars_to_clip_dims`: a variable or name, its pattern and dimensions."""

    def is_choice(pair: Any) -> bool:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return False
        key, dims = pair
        is_key = isinstance(key, str) or is_variable(key) or hasattr(key, "deref")
        return is_key and isinstance(dims, (list, tuple))

    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, (list, tuple)) or not all(map(is_choice, pairs)):
        raise TypeError(
            "Argument `vars_to_clip_dims` must be a list of pairs of a variable and a list of "
            "dimensions, or a dictionary to dimensions from names of variables, from "
            f"`variable.ref()` or, in graphs, from variables. Received: {given!r}"
        )
    found: list[tuple[Any, str, list[int]]] = []
    for key, dims in pairs:
        variable = key.deref() if hasattr(key, "deref") else key
        pattern = pattern_of(variable)
        if any(pattern == known for _, known, _ in found):
            raise ValueError(
                "Argument `vars_to_clip_dims` must have variables of distinct names. "
                f"Received, more than once: {pattern!r}"
            )
        found.append((variable, pattern, list(dims)))
    return found
