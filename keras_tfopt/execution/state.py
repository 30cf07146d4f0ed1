"""What an algorithm says about its state."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Like(NamedTuple):
    """The static facts of a variable that a rule may size its slots by."""

    shape: tuple[int, ...]
    dtype: str  # of the arithmetic and of the slots: float32 for half-precision variables
    path: str


@dataclasses.dataclass(frozen=True)
class Slot:
    """A piece of optimizer state that belongs to one variable.

    Args:
        shape: Static shape. Rules of scope "element" need the variable's own shape. In rules of
            scope "model", None in the last place stands for the entries of all variables.
        initial: Number that fills the slot at the start, or "variable" for the variable's value, or
            "identity" for the identity matrix.
        dtype: Data type; None takes the one in which the variable's arithmetic runs.
        by_row: Whether a row update sees the touched rows of it only, or all of it. None is the
            former if it has as many rows as the variable.
    """

    shape: tuple[int | None, ...]
    initial: float | str = 0.0
    dtype: str | None = None
    by_row: bool | None = None


class Rows(NamedTuple):
    """A new slot value that differs from the old one in one row: `slot[index] = value`.

    Returned from a rule in the place of the whole slot, which would be copied.

    Args:
        index: Which row: an integer, or a scalar tensor of integers.
        value: What it becomes, of the shape of a row.
    """

    index: Any
    value: Any


def own_copy(value: Any) -> Any:
    """Return a copy of a NumPy array, and anything else as it is.

    JAX may read the memory of an array later than it was given it, and keep it as its own where the
    address is a multiple of 64. Whoever fills the array anew would change a step or a variable.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value
