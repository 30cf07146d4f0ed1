"""Variables as batches of blocks, and matrices that act on one axis of each block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras import ops


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
        value = ops.reshape(value, self.shape)
        if self.number > 1:
            missing = [c * b - n for c, b, n in self._axes()]
            if any(missing):
                value = ops.pad(value, [(0, n) for n in missing])
            rank = len(self.shape)
            value = ops.reshape(value, [n for c, b, _ in self._axes() for n in (c, b)])
            value = ops.transpose(value, [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        return ops.reshape(value, (self.number, *self.size))

    def joined(self, batch: Any, shape: Sequence[Any]) -> Any:
        """Return the array of a shape that has these blocks."""
        if self.number > 1:
            rank = len(self.shape)
            batch = ops.reshape(batch, (*self.counts, *self.size))
            batch = ops.transpose(batch, [i + j for i in range(rank) for j in (0, rank)])
            batch = ops.reshape(batch, [c * b for c, b, _ in self._axes()])
            batch = batch[tuple(slice(n) for n in self.shape)]
        return ops.reshape(batch, shape)

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
        rows = ops.reshape(value, (*batch, before, size))
        return ops.reshape(rows @ ops.swapaxes(matrix, -1, -2), value.shape)
    if before == 1:
        return ops.reshape(matrix @ ops.reshape(value, (*batch, size, after)), value.shape)
    parts = ops.reshape(value, (*batch, before, size, after))
    return ops.reshape(matrix[..., None, :, :] @ parts, value.shape)


def products(value: Any, axis: int, batch_axes: int = 0) -> Any:
    """Return the products of slices of an array along one axis, summed over all others.

    Args:
        value: Array of shape (..., d_0, d_1, ...).
        axis: The axis, without those of the batch.
        batch_axes: The number of axes of the batch, which come first.

    Returns:
        Matrix of shape (..., d, d).
    """
    batch, before, size, after = _parts(value, axis, batch_axes)
    if after == 1:
        columns = ops.reshape(value, (*batch, before, size))
        return ops.swapaxes(columns, -1, -2) @ columns
    if before > 1:
        value = ops.swapaxes(ops.reshape(value, (*batch, before, size, after)), -2, -3)
    rows = ops.reshape(value, (*batch, size, before * after))
    return rows @ ops.swapaxes(rows, -1, -2)


def norms(batch: Any) -> Any:
    """Return the norm of each array of a batch, to broadcast against it."""
    axes = tuple(range(1, len(batch.shape)))
    return ops.sqrt(ops.sum(ops.square(batch), axis=axes, keepdims=True))


def _parts(value: Any, axis: int, batch_axes: int) -> tuple[list[int], int, int, int]:
    """Return the shape of the batch, and lengths before, along and after an axis."""
    sizes = [int(n) for n in value.shape]
    place = batch_axes + axis
    before, after = sizes[batch_axes:place], sizes[place + 1 :]
    return sizes[:batch_axes], math.prod(before), sizes[place], math.prod(after)
