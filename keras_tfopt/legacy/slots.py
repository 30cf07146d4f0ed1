"""The order of the originals' slots, which decides their names in files, and their shapes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from keras_tfopt.legacy.table import Row


def slots_in_order(row: Row, rank: int, here: Iterable[str]) -> list[str]:
    """Return the slots of a variable with `rank` dimensions, in the order of creation."""
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
    """Return the shape of a slot that only the original has, and never writes."""
    if not slot.startswith("Gbar_"):
        return shape
    size = shape[int(slot.removeprefix("Gbar_"))]
    return (size, size) if size <= max_matrix_size else (size,)
