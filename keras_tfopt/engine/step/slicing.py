"""Slots with scope "model" that keep only some entries of all variables: `Slot.every`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfopt.engine.state.state import Like, Slot

SLICED_G, SLICED_X = "sliced_g", "sliced_x"
"""Names in `t`: the entries of the gradient and of the variables that such slots keep."""


def count(entries: int, every: int) -> int:
    """Return the number of entries in a slot that keeps the first and each `every`-th of them."""
    return -(-entries // every)


def shape_of(slot: Slot, likes: Sequence[Like]) -> tuple[int, ...]:
    """Return the shape of a slot of all variables, with numbers instead of None."""
    if None not in slot.shape:
        return tuple(size for size in slot.shape if size is not None)
    sizes = [math.prod(like.shape) for like in likes]
    entries = sum(count(size, slot.every) for size in sizes)
    return tuple(entries if size is None else size for size in slot.shape)


def steps_along(slots: Mapping[str, Slot]) -> dict[str, int]:
    """Return `every` of the slots that have entries of the variables, by name.

    Raises:
        ValueError: if slots have different values besides 1, or one is below 1.
    """
    along = {name: slot.every for name, slot in slots.items() if None in slot.shape}
    if len({*along.values(), 1}) > 2 or min(along.values(), default=1) < 1:
        raise ValueError(
            "Slots of one rule must have the same `every`, an integer >= 1, or 1, which is all "
            f"entries. Received: {along}"
        )
    return along


def sliced(flat: Any, ranges: Sequence[tuple[int, int]], every: int) -> list[Any]:
    """Return the entries of each variable that slots keep, given its range in `flat`."""
    return [flat[start:end:every] for start, end in ranges]
