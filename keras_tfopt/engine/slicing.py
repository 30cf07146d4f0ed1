"""Slots with scope "model" that have some of the entries of all variables: `Slot.every`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfopt.engine.state import Like, Slot

SLICED_G, SLICED_X = "sliced_g", "sliced_x"
"""What rules find in `t`: the entries of the gradient and of the variables in such slots."""


def count(entries: int, every: int) -> int:
    """Return how many of so many entries a slot has that keeps the first and each `every`-th."""
    return -(-entries // every)


def shape_of(slot: Slot, likes: Sequence[Like]) -> tuple[int, ...]:
    """Return the shape of a slot of all variables, with numbers for None."""
    if None not in slot.shape:
        return tuple(size for size in slot.shape if size is not None)
    sizes = [math.prod(like.shape) for like in likes]
    entries = sum(count(size, slot.every) for size in sizes)
    return tuple(entries if size is None else size for size in slot.shape)


def steps_along(slots: Mapping[str, Slot]) -> dict[str, int]:
    """Return `every` of the slots that have entries of the variables, by name.

    Raises:
        ValueError: if slots have different ones, of those that are not 1, or one is below 1.
    """
    along = {name: slot.every for name, slot in slots.items() if None in slot.shape}
    if len({*along.values(), 1}) > 2 or min(along.values(), default=1) < 1:
        raise ValueError(
            "Slots of one rule must have the same `every`, an integer >= 1, or 1, which is all "
            f"entries. Received: {along}"
        )
    return along


def sliced(flat: Any, ranges: Sequence[tuple[int, int]], every: int) -> list[Any]:
    """Return those entries of each variable, given where it starts and ends in `flat`."""
    return [flat[start:end:every] for start, end in ranges]
