"""Check what the methods of a rule or wrapper return, and its class attributes."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_tfopt.engine.state.state import MASTER, SCALES, Rows, Slot

# Names in `t` that rules and wrappers cannot give another meaning.
OF_ENGINE = (
    *("step", "iteration", "rows", "touched", "norm", "sum", "mean", "old"),
    "weight_decay_rate",
)


def check_class_attribute(cls: type, name: str, allowed: tuple[str, ...]) -> None:
    """Raise an error if an attribute of a class has another value than those allowed."""
    value = getattr(cls, name)
    if value not in allowed:
        raise ValueError(
            f"Class attribute `{name}` of {cls.__name__} must be one of {allowed}. "
            f"Received: {value!r}"
        )


def checked_slots(owner: Any, slots: Any, method: str = "slots") -> dict[str, Slot]:
    """Return the result of `slots` or `counters`, or raise an error that says what it has to be.

    Args:
        owner: The rule or wrapper.
        slots: The result.
        method: The name of the method.
    """
    found = checked_dictionary(owner, method, slots)
    method = f"{type(owner).__name__}.{method}"
    for name, slot in found.items():
        is_name = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        if not is_name or name.startswith("_"):
            raise ValueError(
                f"{method} must give names that formulas can read as attributes, without an "
                f"underscore in front. Received: {name!r}"
            )
        if name == MASTER or name.endswith(SCALES):
            raise ValueError(
                f"{method} must use other names than {MASTER!r} and those that end with "
                f"{SCALES!r}, which the engine gives to slots of its own. Received: {name!r}"
            )
        if not isinstance(slot, Slot):
            raise TypeError(
                f"{method} must give a keras_tfopt.Slot for {name!r}, such as "
                f"`keras_tfopt.zeros(like)`. Received: {slot!r}"
            )
    return found


def checked_dictionary(owner: Any, method: str, found: Any) -> dict[str, Any]:
    """Return the result of a method as a dictionary, or raise an error if it is none."""
    if not isinstance(found, Mapping):
        raise TypeError(
            f"{type(owner).__name__}.{method} must return a dictionary by name. Received: {found!r}"
        )
    return dict(found)


def checked_scalars(
    owner: Any, method: str, found: Any, known: Iterable[str] = ()
) -> dict[str, Any]:
    """Return what a method gives for `t`, or raise an error for names that `t` has.

    `known` are names of what other methods have given.
    """
    taken = dict.fromkeys((*OF_ENGINE, *known))
    for name in (found := checked_dictionary(owner, method, found)):
        if name in taken:
            raise ValueError(
                f"{type(owner).__name__}.{method} must use other names than those which the engine "
                f"sets in `t`: {', '.join(taken)}. Received: {name!r}"
            )
    return found


def checked_list(owner: Any, method: str, found: Any, count: int) -> list[Any]:
    """Return the result of a hook for all variables, or raise an error if it is none."""
    is_list = isinstance(found, (list, tuple)) and len(found) == count
    if not is_list or any(one is None for one in found):
        raise TypeError(
            f"{type(owner).__name__}.{method} must return a list with an item for each of the "
            f"{count} variables. Received: {found!r}"
        )
    return list(found)


def checked_before(
    owner: Any, result: Any, g: Any, x: Any, slots: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return the gradient, the variable and new slots that `before` gives, or raise an error."""
    method = f"{type(owner).__name__}.before"
    if not (isinstance(result, (tuple, list)) and len(result) in (2, 3)):
        raise TypeError(
            f"{method} must return the gradient and the variable, and may return a dictionary of "
            f"new slots besides. Received: {_types(result)}"
        )
    new_g, new_x, *rest = result
    for what, value in {"gradient": new_g, "variable": new_x}.items():
        if value is None and (what == "variable" or g is not None):
            raise TypeError(f"{method} must return the {what}. Received: None")
    if (owner.scope == "element" or owner.flat) and new_g is not g:
        raise TypeError(
            f"{method} must return the gradient as it came, since the class attribute `scope` of "
            'the wrapper is "element", or `flat` is True. Received: another gradient'
        )
    _, new = check_result(method, (new_x, rest[0] if rest else {}), x, slots)
    return new_g, new_x, new


def check_counted(owner: Any, result: Any, counters: Mapping[str, Any]) -> None:
    """Raise an error if the result of `accept_step` is not a truth value and new counters.

    `counters` are the variables with the old ones.
    """
    method = f"{type(owner).__name__}.accept_step"
    if not (_is_pair(result) and isinstance(result[1], dict)):
        raise TypeError(
            f"{method} must return a truth value and a dictionary of new counters. "
            f"Received: {result!r}"
        )
    check_truth(owner, "accept_step", result[0])
    check_described(method, result[1], counters, what="counter")
    for name, value in result[1].items():
        shape, wanted = tuple(getattr(value, "shape", ())), tuple(counters[name].shape)
        if shape != wanted:
            raise ValueError(
                f"{method} must return {name} in its shape {wanted}. Received: {shape}"
            )


def check_truth(owner: Any, method: str, value: Any) -> None:
    """Raise an error if a result of `accept` or `accept_step` is not one truth value."""
    shape = getattr(value, "shape", None)
    if not isinstance(value, bool) and (shape is None or tuple(shape)):
        found = type(value).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
        raise TypeError(
            f"{type(owner).__name__}.{method} must return one truth value, as a boolean tensor "
            f"without dimensions. Received: {found}"
        )


def check_result(
    method: str, result: Any, x: Any, slots: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the result of `update` or `after`, or raise an error that says what it has to be.

    Only numbers of dimensions are compared, since compiled code may not know sizes. Slots that are
    None stay as they are, like those that are left out.
    """
    if not (_is_pair(result) and isinstance(result[1], dict)):
        raise TypeError(
            f"{method} must return the new variable and a dictionary of new slots. "
            f"Received: {_types(result)}"
        )
    new_x, new = result
    check_described(method, new, slots)
    old = {"the variable": x, **slots}
    for name, value in {"the variable": new_x, **new}.items():
        shape = getattr(value, "shape", None)
        if shape is None or getattr(shape, "rank", 0) is None:  # graphs may not know the rank
            continue
        if len(shape) != len(old[name].shape):
            raise ValueError(
                f"{method} must return {name} with {len(old[name].shape)} dimensions. "
                f"Received: {len(shape)}"
            )
    return new_x, {name: value for name, value in new.items() if value is not None}


def check_shape(method: str, name: str, value: Any, old: Any) -> None:
    if isinstance(value, Rows) or (value is None and name != "the variable"):
        return
    if not hasattr(value, "shape"):
        raise TypeError(f"{method} must return {name} as a tensor. Received: {value!r}")
    found, wanted = tuple(value.shape), tuple(old.shape)
    if found != wanted:
        raise ValueError(f"{method} must return {name} in its shape {wanted}. Received: {found}")


def check_dtype(method: str, name: str, value: Any, old: Any) -> None:
    if not hasattr(value, "dtype"):
        return
    dtype, kept = map(keras.backend.standardize_dtype, (value.dtype, old.dtype))
    if dtype != kept:
        raise TypeError(
            f"{method} must return {name} in its data type, {kept}: convert it by "
            f'`keras.ops.cast(value, "{kept}")`. Received: {dtype}'
        )


def check_described(method: str, new: Any, described: Any, what: str = "slot") -> None:
    """Raise an error for new slots or counters that `slots` or `counters` does not describe."""
    for name in new:
        if name not in described:
            raise KeyError(
                f"{method} returned the {what} {name!r}, which `{what}s` does not describe. "
                f"Described: {list(described)}"
            )


def _types(result: Any) -> str:
    """Return the type of a result; of a list or tuple, the types of its items as well."""
    name = type(result).__name__
    if not isinstance(result, (list, tuple)):
        return name
    return f"{name} of {len(result)}: {', '.join(type(one).__name__ for one in result)}"


def _is_pair(result: Any) -> bool:
    return isinstance(result, (tuple, list)) and len(result) == 2
