"""Check arguments that are assigned to an optimizer after it was made."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.arguments.options import (
    DEFAULTS,
    all_arguments,
    changes,
    check_base,
    check_learning_rate,
    check_switch,
    is_number,
)
from keras_tfopt.engine.arguments.selection import check_choice
from keras_tfopt.engine.arguments.slot_dtype import check_scope, check_slot_dtype
from keras_tfopt.engine.backends.select import backend

# Options that are not numbers, whose values `check_option` looks at.
_CHECKED = ("row_variables", "slot_dtype", "master_weights", "maximize", "shard_state")
# Options that decide which state there is.
_OF_STATE = (
    "use_ema",
    "gradient_accumulation_steps",
    "master_weights",
    "row_variables",
    "shard_state",
    "slot_dtype",
)
# Options of which a built optimizer knows for each variable whether they are None.
_NONE_OR_NOT = ("weight_decay", "clip_unitwise")


def check_option(name: str, value: Any) -> Any:
    """Return the value to keep of an option that is not a number, or raise an error."""
    if name == "row_variables":
        return check_choice(name, value)
    return check_slot_dtype(value) if name == "slot_dtype" else check_switch(name, value)


def checked(optimizer: Any, name: str, value: Any) -> Any:
    """Return the value that is assigned to an argument of an optimizer, or raise an error.

    It must be one that the constructor takes, or an array or tensor with such a number. Once there
    is state, it must fit that.
    """
    cls = type(optimizer)
    declared = getattr(cls, "_fields", {}).get(name)
    if name == "learning_rate":
        return _checked_rate(optimizer, value)
    if declared is not None:
        value = declared.check(name, _number_in(value))
    elif name in _CHECKED and name in all_arguments(cls):
        value = check_option(name, value)
        if name == "slot_dtype":
            check_scope(optimizer, value)
    elif name in DEFAULTS and name in all_arguments(cls):
        value = check_base(cls, {name: _number_in(value)})[name]
    else:
        return value
    if optimizer.built and not _fits_state(optimizer, name, value):
        raise built_for(optimizer, name, value)
    return value


def _checked_rate(optimizer: Any, value: Any) -> Any:
    value = _number_in(value.value if isinstance(value, keras.Variable) else value)
    if not ops.is_tensor(value):  # within a compiled step, a tensor has no value yet
        value = check_learning_rate(value)
    is_wrapper = hasattr(optimizer, "inner_optimizer")  # it passes the value on
    rate = getattr(optimizer, "_learning_rate", None)
    if not is_wrapper and callable(rate) and not callable(value):
        raise TypeError(
            f"The learning rate of {type(optimizer).__name__} is a schedule or a function, in "
            "whose place no number can be put: make a new optimizer. Received: "
            f"learning_rate={value!r}"
        )
    return value


def _number_in(value: Any) -> Any:
    """Return the number in an array or tensor without dimensions; anything else unchanged."""
    is_array = isinstance(value, (np.ndarray, np.generic)) or ops.is_tensor(value)
    if not is_array or is_number(value) or backend.is_variable(value):
        return value
    try:
        array = ops.convert_to_numpy(value)
    except (NotImplementedError, TypeError):  # it has no value yet
        return value
    return value if array.ndim else array.item()


def built_for(optimizer: Any, name: str, value: Any) -> ValueError:
    """Return the error for an argument that a built optimizer cannot change."""
    return ValueError(
        f"Argument `{name}` of {type(optimizer).__name__} was {getattr(optimizer, name)!r} when "
        f"the optimizer was built, and its state is for that. Received: {value!r}. Make a new "
        "optimizer for another value"
    )


def _fits_state(optimizer: Any, name: str, value: Any) -> bool:
    if name in getattr(type(optimizer), "_fields", {}):
        if not hasattr(optimizer, "with_attributes"):  # a wrapper
            return True
        old = getattr(optimizer, name)
        if value is not old and (changes(value) or changes(old)):
            return False
        return _slots(optimizer, {}) == _slots(optimizer, {name: value})
    if name in _NONE_OR_NOT:
        return (value is None) == (getattr(optimizer, name) is None)
    return name not in _OF_STATE or value == getattr(optimizer, name)


def _slots(rule: Any, values: dict[str, Any]) -> list[dict[str, tuple]]:
    """Return the shapes of slots by name, for variables of each shape, with values of arguments."""
    likes = [entry.like for entry in rule._state.entries]
    distinct = list({like.shape: like for like in likes}.values())
    alone = rule.with_attributes(values)
    each = map(alone.slots, [likes] if rule.scope == "model" else distinct)
    return [{name: tuple(slot.shape) for name, slot in one.items()} for one in each]
