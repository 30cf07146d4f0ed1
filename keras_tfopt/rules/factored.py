"""Second moments that are kept as means of rows and columns, of the last two axes."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.engine import Slot


def factor_slots(shape: Any) -> tuple[Slot, Slot]:
    """Return the slots for the means over the last axis and over the last but one."""
    return Slot(shape[:-1]), Slot((*shape[:-2], shape[-1]), by_row=len(shape) > 2)


def factors(square: Any, row: Any, col: Any, beta: Any) -> tuple[Any, Any]:
    """Return the decayed averages of the means over both axes."""
    row = beta * row + (1 - beta) * _mean(square, -1)
    return row, beta * col + (1 - beta) * _mean(square, -2)


def divided(value: Any, row: Any, col: Any) -> Any:
    """Return the quotient with the root of the matrix that the averages stand for."""
    relative = row / _mean(row, -1)[..., None]
    # By each root alone: the product of both averages may be too small for float32.
    return value / ops.sqrt(relative)[..., None] / ops.sqrt(col)[..., None, :]


def rms(value: Any) -> Any:
    """Return the root mean square of all entries."""
    return ops.sqrt(ops.sum(ops.square(value)) / math.prod(int(n) for n in value.shape))


def _mean(value: Any, axis: int) -> Any:
    # `ops.mean` of float64 computes in float32.
    return ops.sum(value, axis=axis) / int(value.shape[axis])
