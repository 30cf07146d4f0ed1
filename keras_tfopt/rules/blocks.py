"""Variables as batches of blocks, and matrices that act on one axis of each block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine import add_product, lerp, norm


def merged_shape(shape: Sequence[Any], limit: int, target: int = 1) -> tuple[int, ...]:
    """Return a shape with fewer axes for the same entries.

    Axes of length 1 are left out. Neighbors are merged from the left while their product is at most
    `limit` and there are more than `target` axes.
    """
    # Sizes are objects where TensorFlow behaves as its version 1.
    sizes = [int(n) for n in shape if int(n) != 1] or [1]
    merged = sizes[:1]
    for place, size in enumerate(sizes[1:], start=1):
        axes = len(merged) + len(sizes) - place
        if axes > target and merged[-1] * size <= limit:
            merged[-1] *= size
        else:
            merged.append(size)
    return tuple(merged)


def reshaped(value: Any, shape: Sequence[Any]) -> Any:
    """Return an array in a shape, which it often has: Keras takes longer to find that out."""
    return value if tuple(value.shape) == tuple(shape) else ops.reshape(value, shape)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How an array is cut into blocks of one shape. The last ones are filled up with zeros.

    Attributes:
        shape: The shape of the array, perhaps with axes merged.
        limit: The largest length of a block.
    """

    shape: tuple[int, ...]
    limit: int

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of a block."""
        return tuple(max(1, min(n, self.limit)) for n in self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of blocks along each axis."""
        return tuple(-(-n // b) for n, b in zip(self.shape, self.size, strict=True))

    @property
    def number(self) -> int:
        """The number of all blocks."""
        return math.prod(self.counts)

    def cut(self, value: Any) -> Any:
        """Return the blocks of an array as a batch."""
        value = reshaped(value, self.shape)
        if self.number > 1:
            missing = [c * b - n for c, b, n in self._axes()]
            if any(missing):
                value = ops.pad(value, [(0, n) for n in missing])
            rank = len(self.shape)
            value = reshaped(value, [n for c, b, _ in self._axes() for n in (c, b)])
            value = ops.transpose(value, [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        return reshaped(value, (self.number, *self.size))

    def joined(self, batch: Any, shape: Sequence[Any]) -> Any:
        """Return the array of a shape that has these blocks."""
        if self.number > 1:
            rank = len(self.shape)
            batch = reshaped(batch, (*self.counts, *self.size))
            batch = ops.transpose(batch, [i + j for i in range(rank) for j in (0, rank)])
            batch = reshaped(batch, [c * b for c, b, _ in self._axes()])
            batch = batch[tuple(slice(n) for n in self.shape)]
        return reshaped(batch, shape)

    def _axes(self) -> list[tuple[int, int, int]]:
        return list(zip(self.counts, self.size, self.shape, strict=True))


def along(value: Any, axis: int, matrix: Any) -> Any:
    """Return the product of a matrix with one axis of an array, for each of a batch.

    Args:
        value: Array of shape (..., d_0, d_1, ...).
        axis: The axis, without those of the batch.
        matrix: Matrix of shape (..., d, d), with the same axes of the batch.
    """
    batch, before, size, after = _parts(value, axis, len(matrix.shape) - 2)
    if after == 1:
        rows = reshaped(value, (*batch, before, size))
        return reshaped(rows @ ops.swapaxes(matrix, -1, -2), value.shape)
    if before == 1:
        return reshaped(matrix @ reshaped(value, (*batch, size, after)), value.shape)
    parts = reshaped(value, (*batch, before, size, after))
    return reshaped(matrix[..., None, :, :] @ parts, value.shape)


def with_products(old: Any, beta: Any, value: Any, axis: int, batch_axes: int = 0) -> Any:
    """Return the average with products of slices of an array, or the sum where beta is 1.

    Slices are those along one axis; their products are summed over all others.

    Args:
        old: The average so far, of shape (..., d, d).
        beta: Its weight, of which the rest is that of the products.
        value: Array of shape (..., d_0, d_1, ...).
        axis: The axis, without those of the batch.
        batch_axes: The number of axes of the batch, which come first, 0 or 1.
    """
    batch, before, size, after = _parts(value, axis, batch_axes)
    if after == 1:
        rows = ops.swapaxes(reshaped(value, (*batch, before, size)), -1, -2)
    else:
        if before > 1:
            value = ops.swapaxes(reshaped(value, (*batch, before, size, after)), -2, -3)
        rows = reshaped(value, (*batch, size, before * after))
    columns = ops.swapaxes(rows, -1, -2)
    if isinstance(beta, (int, float)):
        return add_product(old, beta, rows, columns, 1 if beta == 1 else 1 - beta)
    return lerp(old, rows @ columns, 1 - beta)


def norms(batch: Any) -> Any:
    """Return the norm of each array of a batch, to broadcast against it."""
    if batch.shape[0] == 1:
        return reshaped(norm(batch), [1] * len(batch.shape))  # in one pass
    axes = tuple(range(1, len(batch.shape)))
    return ops.sqrt(ops.sum(ops.square(batch), axis=axes, keepdims=True))


def _parts(value: Any, axis: int, batch_axes: int) -> tuple[list[int], int, int, int]:
    """Return the shape of the batch, and lengths before, along and after an axis."""
    sizes = [int(n) for n in value.shape]
    place = batch_axes + axis
    before, after = sizes[batch_axes:place], sizes[place + 1 :]
    return sizes[:batch_axes], math.prod(before), sizes[place], math.prod(after)
