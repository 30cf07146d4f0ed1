"""Many tensors as few: one long one of each dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops


def summed(tensors: list[Any], reduce: Callable[[Any], Any]) -> list[Any]:
    """The tensors after `reduce`, which is called once for each dtype, with all of it in a row."""
    kinds: dict[str, list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault(keras.backend.standardize_dtype(tensor.dtype), []).append(number)
    found = list(tensors)
    for members in kinds.values():
        total = reduce(ops.concatenate([ops.reshape(tensors[n], (-1,)) for n in members]))
        start = 0
        for number in members:
            shape = tuple(tensors[number].shape)
            end = start + math.prod(shape)
            found[number] = ops.reshape(total[start:end], shape)
            start = end
    return found


def packed(arrays: list[np.ndarray]) -> np.ndarray:
    """All the bytes of some arrays, as integers that any engine can send."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return np.frombuffer(content + bytes(-len(content) % 4), "int32")


def unpacked(integers: np.ndarray, likes: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays that were `packed`, given arrays of the same shapes and dtypes."""
    content, start, arrays = np.ascontiguousarray(integers, "int32").tobytes(), 0, []
    for like in likes:
        part = content[start : start + like.nbytes]
        arrays.append(np.frombuffer(part, like.dtype).reshape(like.shape).copy())
        start += like.nbytes
    return arrays
