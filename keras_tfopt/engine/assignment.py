"""Check arguments that are assigned to an optimizer after it was made."""

from __future__ import annotations

from typing import Any

from keras_tfopt.engine.options import (
    DEFAULTS,
    all_arguments,
    check_base,
    check_learning_rate,
    check_switch,
    is_number,
)
from keras_tfopt.engine.selection import check_choice
from keras_tfopt.engine.slot_dtype import check_scope, check_slot_dtype

# Types of values that may be numbers by mistake; numbers are looked at, too.
_PLAIN = (bool, str, list, tuple, dict)
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

    Numbers must be in the range of the argument. Once there is state, it must fit them. Schedules,
    tensors and other objects are not looked at.
    """
    declared = getattr(type(optimizer), "_fields", {}).get(name)
    is_plain = value is None or isinstance(value, _PLAIN) or is_number(value)
    if is_plain and declared is not None:
        value = declared.check(name, value)
    elif name == "learning_rate" and is_plain:
        value = check_learning_rate(value)
        is_wrapper = hasattr(optimizer, "inner_optimizer")  # it passes the value on
        if not is_wrapper and callable(getattr(optimizer, "_learning_rate", None)):
            raise TypeError(
                f"The learning rate of {type(optimizer).__name__} is a schedule or a function, in "
                "whose place no number can be put: make a new optimizer. Received: "
                f"learning_rate={value!r}"
            )
    elif name in _CHECKED and name in all_arguments(type(optimizer)):
        value = check_option(name, value)
        if name == "slot_dtype":
            check_scope(optimizer, value)
        is_plain = True
    elif is_plain and name in DEFAULTS and name in all_arguments(type(optimizer)):
        value = check_base(type(optimizer), {name: value})[name]
    if is_plain and optimizer.built and not _fits_state(optimizer, name, value):
        raise built_for(optimizer, name, value)
    return value


def built_for(optimizer: Any, name: str, value: Any) -> ValueError:
    """Return the error for an argument that a built optimizer cannot change."""
    return ValueError(
        f"Argument `{name}` of {type(optimizer).__name__} was {getattr(optimizer, name)!r} when "
        f"the optimizer was built, and its state is for that. Received: {value!r}. Make a new "
        "optimizer for another value"
    )


def _fits_state(optimizer: Any, name: str, value: Any) -> bool:
    if name in getattr(type(optimizer), "_fields", {}):
        is_rule = hasattr(optimizer, "with_attributes")
        return not is_rule or _slots(optimizer, {}) == _slots(optimizer, {name: value})
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
