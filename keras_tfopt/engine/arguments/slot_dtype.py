"""The option `slot_dtype`: choose slots to keep in fewer bytes, and describe their variables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfopt.engine.arguments.suggestions import did_you_mean
from keras_tfopt.engine.state.state import MASTER, SCALES, Like, Settings, Slot, Stored
from keras_tfopt.engine.state.stored import DTYPES, LEAST, LEAST_ROW, SIGNED_END, scales_shape

OPTION = "slot_dtype"


def check_slot_dtype(value: Any) -> Any:
    """Return the argument `slot_dtype`, or raise an error if it is wrong."""
    is_by_slot = isinstance(value, Mapping)
    message = (
        f"Argument `{OPTION}` must be one of {DTYPES}, or a dictionary from names of slots to "
        "these. Received: "
    )
    if is_by_slot and not all(isinstance(name, str) for name in value):
        raise TypeError(f"{message}{value!r}")
    for dtype in _dtypes(value):
        if not isinstance(dtype, str):
            raise TypeError(f"{message}{dtype!r}")
        if dtype not in DTYPES:
            raise ValueError(f"{message}{dtype!r}")
    return dict(value) if is_by_slot else value


def is_used(value: Any) -> bool:
    """Return whether `slot_dtype` asks for anything but float32."""
    return any(dtype != "float32" for dtype in _dtypes(value))


def _dtypes(value: Any) -> list[str]:
    return list(value.values()) if isinstance(value, Mapping) else [value]


def check_scope(optimizer: Any, value: Any) -> None:
    """Raise an error if a rule over all variables at once has slots in fewer bytes."""
    if optimizer.scope == "model" and is_used(value):
        raise ValueError(
            f"{type(optimizer).__name__} keeps state of all variables together, which is float32: "
            f'`{OPTION}` must be "float32". Received: {value!r}'
        )


def check_slots(optimizer: Any, likes: Sequence[Like]) -> None:
    """Raise an error if the slots of some variables cannot be kept as `slot_dtype` says."""
    if optimizer.scope == "model":
        return
    known: dict[str, None] = {}
    named: dict[str, Any] = {}
    for like in likes:
        settings = optimizer.settings_of(like)
        choice = settings.given.get(OPTION, optimizer.slot_dtype)
        if settings.frozen or not (is_used(choice) or isinstance(choice, Mapping)):
            continue
        rule = optimizer._hyperparameters[optimizer.hyperparameters_of(settings)].at({})
        slots = rule.slots(like)
        known.update(dict.fromkeys(slots))
        if isinstance(choice, Mapping):
            named.update(dict.fromkeys(choice, choice))
        _storable(optimizer, rule, like, slots, choice)
    for name, choice in named.items():
        if name not in known:
            raise ValueError(
                f"Argument `{OPTION}`: {type(optimizer).__name__} has no slot {name!r}. "
                f"{did_you_mean(name, list(known))} Received: {choice!r}"
            )


def _storable(
    optimizer: Any, rule: Any, like: Like, slots: Mapping[str, Slot], choice: Any
) -> dict[str, str]:
    """Return the dtypes of slots to keep in fewer bytes; raise an error if that is impossible."""
    # A slot has the variable's shape if it follows each dimension of it.
    probe = like._replace(shape=tuple(n + place for place, n in enumerate(like.shape)))
    of_probe = rule.slots(probe) if len(like.shape) > 1 else slots

    def has_shape(name: str) -> bool:
        slot, other = slots[name], of_probe.get(name)
        return tuple(slot.shape) == like.shape and (
            other is slot or other is not None and tuple(other.shape) == probe.shape
        )

    fitting = {
        name
        for name, slot in slots.items()
        if has_shape(name) and isinstance(slot.initial, (int, float)) and slot.dtype is None
    }
    found = {}
    for name, slot in slots.items():
        dtype = choice.get(name, "float32") if isinstance(choice, Mapping) else choice
        if dtype == "float32" or name == MASTER:
            continue
        if name in fitting:
            found[name] = dtype
        elif isinstance(choice, Mapping):
            raise ValueError(
                f"Argument `{OPTION}`: slot {name!r} of {type(optimizer).__name__} "
                f"{_why(slot, has_shape(name))}, and stays as it is. Received: {choice!r} for "
                f"{like.path!r}"
            )
        elif not has_shape(name) and slot.shape and slot.dtype is None:
            others = {n: dtype for n in slots if n in fitting and n != MASTER}
            hint = f"Name the others, as in {OPTION}={others!r}" if others else "Leave it out"
            raise ValueError(
                f"Argument `{OPTION}`: {type(optimizer).__name__} keeps slots of other shapes than "
                f"its variables, such as {name!r} of {like.path!r}, which stay float32. {hint}. "
                f"Received: {choice!r}"
            )
    return found


def _why(slot: Slot, has_shape: bool) -> str:
    if not has_shape:
        return f"has the shape {tuple(slot.shape)}, not that of the variable"
    if slot.dtype is not None:
        return f"has the dtype {slot.dtype}"
    return "holds a copy of the variable or a matrix"


def storage(
    optimizer: Any,
    rule: Any,
    like: Like,
    slots: Mapping[str, Slot],
    settings: Settings,
    has_rows: bool,
) -> tuple[Stored, ...]:
    """Return how slots of one variable are kept, except for those in float32."""
    choice = settings.given.get(OPTION, optimizer.slot_dtype)
    if not slots or not is_used(choice) or like.dtype != "float32":
        return ()
    if math.prod(like.shape) < LEAST or has_rows and OPTION not in settings.given:
        return ()
    own = {name: slot for name, slot in slots.items() if name != MASTER}
    dtypes = _storable(optimizer, rule, like, own, choice)
    if has_rows and math.prod(like.shape[1:]) < LEAST_ROW:
        dtypes = {name: dtype for name, dtype in dtypes.items() if dtype != "int8"}
    return tuple(Stored(name, dtype, slots[name].signed) for name, dtype in dtypes.items())


def as_kept(
    slots: Mapping[str, Slot], stored: Sequence[Stored], like: Like, has_rows: bool
) -> dict[str, Slot]:
    """Return the slots as they are kept; with int8, this adds slots for the scales."""
    ways = {one.slot: one for one in stored}
    kept = {}
    for name, slot in slots.items():
        way = ways.get(name)
        if way is None:
            kept[name] = slot
        elif way.dtype == "bfloat16":
            kept[name] = dataclasses.replace(slot, dtype="bfloat16")
        else:
            start = float(slot.initial)
            zero = 127 if way.signed else 0
            code = 255 if start > 0 else zero if start == 0 else 0
            scale = start if start >= 0 else -start / SIGNED_END
            shape = scales_shape(like.shape, has_rows)
            kept[name] = dataclasses.replace(slot, initial=code, dtype="uint8")
            kept[name + SCALES] = Slot(shape, scale, "float32", by_row=has_rows)
    return kept
