"""Average the gradients of several workers, which may have different rows."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import RowGradient


def mean_gradient(total: Any, row_count: Any, count: Any) -> Any:
    """Return the mean of gradients from their sum.

    Args:
        total: The sum.
        row_count: None for dense gradients. For row gradients, the number of gradients with each
            row, shaped to broadcast over the sum. Each row is divided by it, and only rows with a
            gradient are touched.
        count: The number of gradients. If it is 0, the mean is zero.
    """
    if row_count is None:
        return total / _at_least_one(count, total)
    values, indices = backend.rows_at(total / _at_least_one(row_count, total), row_count > 0)
    return RowGradient.unchecked(values, indices, tuple(total.shape), named=True, distinct=True)


def _at_least_one(count: Any, like: Any) -> Any:
    return ops.cast(ops.where(count > 0, count, ops.ones_like(count)), like.dtype)
