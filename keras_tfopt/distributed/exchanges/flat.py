"""Join many tensors to one long tensor for each dtype, so that one collective carries them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops


def summed(reduce: Callable[..., Any], *each: list[Any]) -> list[Any]:
    """Return the sums of tensors over all workers.

    Args:
        reduce: Function that takes one long tensor of each worker that is known here, and returns
            the sum over all workers. It is called once for each dtype.
        *each: The tensors of each of these workers.
    """
    first = each[0]
    kinds: dict[str, list[int]] = {}
    for number, tensor in enumerate(first):
        kinds.setdefault(keras.backend.standardize_dtype(tensor.dtype), []).append(number)
    found = list(first)
    for members in kinds.values():
        total = reduce(
            *[ops.concatenate([ops.reshape(own[n], (-1,)) for n in members]) for own in each]
        )
        each_total = parts(total, [first[n] for n in members])
        for number, part in zip(members, each_total, strict=True):
            found[number] = part
    return found


def parts(whole: Any, likes: Sequence[Any]) -> Iterator[Any]:
    """Split a long tensor into parts with the shapes of some tensors, and yield them."""
    start = 0
    for like in likes:
        shape = tuple(like.shape)
        end = start + math.prod(shape)
        yield ops.reshape(whole[start:end], shape)
        start = end


def packed(arrays: list[np.ndarray]) -> np.ndarray:
    """Return all bytes of some arrays, as integers that any engine can sum."""
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return np.frombuffer(content + bytes(-len(content) % 4), "int32")


def unpacked(integers: np.ndarray, likes: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays that were `packed`, given arrays of the same shapes and dtypes."""
    content, start, arrays = np.ascontiguousarray(integers, "int32").tobytes(), 0, []
    for like in likes:
        part = content[start : start + like.nbytes]
        arrays.append(np.frombuffer(part, like.dtype).reshape(like.shape).copy())
        start += like.nbytes
    return arrays
