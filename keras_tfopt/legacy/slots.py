"""The slots of the originals: their order, which names in files come from, and their shapes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from keras_tfopt.legacy.table import Row


def slots_in_order(row: Row, rank: int, here: Iterable[str]) -> list[str]:
    """The slots of a variable of so many dimensions, in the order in which they are created."""
    found: list[str] = []
    of_dimensions = [slot for slot in row.slots if "*" in slot]
    for slot in row.slots:
        if slot not in of_dimensions:
            found.append(slot)
        elif slot == of_dimensions[0]:
            found += [s.replace("*", str(i)) for i in range(rank) for s in of_dimensions]
    here = set(here)
    return [
        slot
        for slot in found
        if slot in here or not any(fnmatch.fnmatch(slot, p) for p in row.sometimes)
    ]


def unwritten_shape(slot: str, shape: tuple[int, ...], max_matrix_size: int) -> tuple[int, ...]:
    """The shape of a slot that is there, but never written, in the original only."""
    if not slot.startswith("Gbar_"):
        return shape
    size = shape[int(slot.removeprefix("Gbar_"))]
    return (size, size) if size <= max_matrix_size else (size,)
