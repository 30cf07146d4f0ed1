"""Show a slot that is kept as int8 as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.state import SCALES, Entry
from keras_tfopt.engine.state.stored import decode, encode


class DecodedSlot:
    """What `optimizer.slot` returns for a slot that `slot_dtype="int8"` keeps in codes.

    Functions of `keras.ops` and of NumPy take it as float32 numbers, which `value` returns for
    arithmetic. `assign` takes numbers, and rounds them to 8 bits.

    Attributes:
        codes: The variable with the codes.
        scales: The variable with a scale for each block.
    """

    dtype = "float32"

    def __init__(self, codes: Any, scales: Any, signed: bool):
        self.codes, self.scales, self.signed = codes, scales, signed

    @property
    def name(self) -> str:
        return self.codes.name

    @property
    def path(self) -> str:
        return self.codes.path

    @property
    def shape(self) -> Any:
        return self.codes.shape

    @property
    def value(self) -> Any:
        """The numbers, as a tensor."""
        return decode(backend.read(self.codes), backend.read(self.scales), self.signed)

    def numpy(self) -> np.ndarray:
        """Return the numbers as a NumPy array."""
        return ops.convert_to_numpy(self.value)

    def __jax_array__(self) -> Any:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype)

    def assign(self, value: Any) -> None:
        """Assign numbers, which are rounded.

        Raises:
            ValueError: if they have another shape.
        """
        value = ops.convert_to_tensor(value, "float32")
        if tuple(value.shape) != tuple(self.shape):
            raise ValueError(
                f"The slot {self.path!r} has shape {tuple(self.shape)}. Received: an array of "
                f"shape {tuple(value.shape)}"
            )
        codes, scales = encode(value, tuple(self.scales.shape), self.signed)
        backend.commit([(self.codes, None, codes), (self.scales, None, scales)])

    def __repr__(self) -> str:
        return f"<DecodedSlot path={self.path}, shape={tuple(self.shape)}, kept as int8>"


def seen(entry: Entry) -> dict[str, Any]:
    """Return the slots of a variable by name, as users see them."""
    slots = dict(entry.slots)
    for name, dtype, signed in entry.stored:
        if dtype == "int8":
            slots[name] = DecodedSlot(slots[name], slots.pop(name + SCALES), signed)
    return slots


def tensors(entry: Entry, read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the values of a variable's slots by name, in the dtype of its arithmetic."""
    values = {name: read(slot) for name, slot in entry.slots.items()}
    for name, dtype, signed in entry.stored:
        if dtype == "int8":
            values[name] = decode(values[name], values.pop(name + SCALES), signed)
        else:
            values[name] = ops.cast(values[name], entry.like.dtype)
    return values
