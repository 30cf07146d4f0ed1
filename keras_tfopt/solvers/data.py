"""The data of full-batch training, read again in every evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.checks import check_integer


class Batches:
    """Iterate over the data, as pairs of a size and a batch `(x, y, sample_weight)`.

    Args:
        x: Arrays, in any structure; or a dataset: a `keras.utils.PyDataset`, or what can be
            iterated over again and again, as a `tf.data.Dataset` and a `DataLoader` of PyTorch.
        y: Arrays, or None.
        sample_weight: Array, or None.
        batch_size: How many samples of arrays are one batch; None is all of them, which then stay
            on the device.
        dtype: Dtype in which floating-point arrays go to the device.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, batch_size: int | None, dtype: str):
        self._dtype = dtype
        self._arrays: Any = None
        self._kept: tuple[int, Any] | None = None
        self._batch_size = (
            None if batch_size is None else check_integer("batch_size", batch_size, 1)
        )
        self._dataset = None
        if _is_dataset(x):
            given = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                raise ValueError(
                    f"Argument `{extra[0]}` must be None where `x` is a dataset, which has its "
                    f"own. Received: x={x!r}"
                )
            self._dataset = x
        else:
            self._arrays = (x, y, sample_weight)
            self._count = _common_size(self._arrays)

    @property
    def several(self) -> bool:
        """Whether there may be more than one batch."""
        if self._dataset is not None:
            return True
        return self._batch_size is not None and self._batch_size < self._count

    @property
    def lack_targets(self) -> bool:
        """Whether there are arrays, and none of targets."""
        return self._dataset is None and self._arrays[1] is None

    def first(self) -> Any:
        """Return the first batch."""
        for _, batch in self:
            return batch
        raise ValueError("Argument `x` must have a batch at least. Received: an empty dataset")

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        if self._dataset is not None:
            for batch in _read(self._dataset):
                if isinstance(batch, list):  # as PyTorch collates them
                    batch = tuple(batch)
                parts = keras.utils.unpack_x_y_sample_weight(batch)
                yield _common_size(parts), self._on_device(parts)
        elif self._batch_size is not None and self.several:
            for start in range(0, self._count, self._batch_size):
                parts = _part(self._arrays, slice(start, start + self._batch_size))
                yield _common_size(parts), self._on_device(parts)
        else:
            if self._kept is None:
                self._kept = self._count, self._on_device(self._arrays)
            yield self._kept

    def _on_device(self, arrays: Any) -> Any:
        return keras.tree.map_structure(self._tensor, arrays)

    def _tensor(self, array: Any) -> Any:
        if array is None or ops.is_tensor(array):
            return array
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self._dtype, copy=False)
        return ops.convert_to_tensor(array)


def _is_dataset(x: Any) -> bool:
    if isinstance(x, keras.utils.PyDataset):
        if x.num_batches is None:
            raise ValueError(f"Argument `x` must be a dataset that ends. Received: {x!r}")
        return True
    if hasattr(x, "__next__"):
        raise TypeError(
            "Argument `x` must be data that every evaluation of the loss can read again: arrays, a "
            "keras.utils.PyDataset, a tf.data.Dataset or a DataLoader, not an iterator. "
            f"Received: {x!r}"
        )
    leaves = keras.tree.flatten(x)
    return (
        len(leaves) == 1 and leaves[0] is x and not hasattr(x, "shape") and hasattr(x, "__iter__")
    )


def _part(arrays: Any, part: slice) -> Any:
    return keras.tree.map_structure(lambda a: None if a is None else a[part], arrays)


def _read(dataset: Any) -> Iterator[Any]:
    if not isinstance(dataset, keras.utils.PyDataset):
        yield from dataset
        return
    for index in range(dataset.num_batches):
        yield dataset[index]


def _common_size(parts: Any) -> int:
    """Return how many samples arrays have, or raise an error."""
    sizes = []
    for name, part in zip(("x", "y", "sample_weight"), parts, strict=True):
        leaves = keras.tree.flatten(part)
        if not leaves:
            sizes.append(0)
        for leaf in leaves:
            if leaf is None and name != "x":
                continue
            shape = getattr(leaf, "shape", None)
            if not shape:
                raise TypeError(
                    f"Argument `{name}` must be arrays of one sample or more. Received: {leaf!r}"
                )
            sizes.append(int(shape[0]))
    if not sizes or min(sizes) != max(sizes) or sizes[0] == 0:
        raise ValueError(
            "Arguments `x`, `y` and `sample_weight` must have the same number of samples, one or "
            f"more. Received: {sizes}"
        )
    return sizes[0]
