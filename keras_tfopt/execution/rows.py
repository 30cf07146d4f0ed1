"""Row (sparse) gradients, the same on every backend."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.state import own_copy


class RowGradient:
    """The gradient of a variable in which only some rows take part.

    It touches exactly the rows that `indices` names, be the values zero or not. A row that is named
    several times gets the sum of its values. Pass it to `optimizer.apply` in the place of a tensor.
    On JAX it is a pytree, so it can cross `jax.jit` and `jax.grad` boundaries.

    Args:
        values: Tensor of shape `(k, *shape[1:])`, the gradient of each named row.
        indices: Integer tensor of shape `(k,)`, from 0 to `shape[0] - 1`. k may be zero.
        shape: Shape of the whole variable, of rank one or more.

    Raises:
        ValueError: if the shapes do not fit together.
        TypeError: if the indices are not integers.

    Example:
    >>> gradient = keras_tfopt.RowGradient([[1.0, 2.0]], [3], shape=(10, 2))
    >>> optimizer.apply([gradient], [table])
    """

    def __init__(self, values: Any, indices: Any, shape: tuple[int, ...]):
        shape = tuple(int(size) for size in shape)
        values = _tensor(values)
        indices = _tensor(indices, "int32")
        if not shape:
            raise ValueError("Argument `shape` needs at least one dimension. Received: shape=()")
        kind = keras.backend.standardize_dtype(indices.dtype)
        if "int" not in kind:
            raise TypeError(f"Argument `indices` must hold integers. Received: dtype {kind}")
        if len(indices.shape) != 1:
            raise ValueError(
                f"Argument `indices` must have shape (k,). Received: shape {tuple(indices.shape)}"
            )
        count = indices.shape[0]
        expected = (count, *shape[1:])
        if not fits(values.shape, expected):
            raise ValueError(
                "Argument `values` must have a row for each index and the variable's other "
                f"dimensions, {expected}. Received: shape {tuple(values.shape)}, for {count} "
                f"indices into a variable of shape {shape}"
            )
        self.values, self.indices, self.shape = values, indices, shape

    @property
    def dtype(self) -> str:
        """Data type of the values."""
        return keras.backend.standardize_dtype(self.values.dtype)

    def __truediv__(self, divisor: Any) -> RowGradient:
        return self.map(lambda values: values / ops.cast(divisor, values.dtype))

    def map(self, function: Any) -> RowGradient:
        """The same rows with `function(values)` for values."""
        return RowGradient._unchecked(function(self.values), self.indices, self.shape)

    def __repr__(self) -> str:
        return f"RowGradient({self.indices.shape[0]} rows of {self.shape}, dtype={self.dtype})"

    @classmethod
    def _unchecked(cls, values: Any, indices: Any, shape: tuple[int, ...]) -> RowGradient:
        # Tree transformations pass placeholders instead of tensors, which no check would let by.
        self = object.__new__(cls)
        self.values, self.indices, self.shape = values, indices, tuple(shape)
        return self


def _tensor(value: Any, empty_dtype: str | None = None) -> Any:
    if hasattr(value, "dtype") and ops.is_tensor(value):
        return value
    if empty_dtype is not None and hasattr(value, "__len__") and len(value) == 0:
        return ops.zeros((0,), dtype=empty_dtype)  # an empty list would come out as floats
    return ops.convert_to_tensor(own_copy(value))


def fits(shape: Any, expected: tuple[Any, ...]) -> bool:
    """Whether a shape, possibly with unknown dimensions, can be the expected one."""
    shape = tuple(shape)
    return len(shape) == len(expected) and all(
        have is None or want is None or have == want
        for have, want in zip(shape, expected, strict=True)
    )


def deliver_rows(table: Any) -> None:
    """Says of a variable that rows in its gradient are those that were looked up."""
    table.is_looked_up = True


def is_looked_up(variable: Any) -> bool:
    """Whether `deliver_rows` was called for this variable."""
    return getattr(variable, "is_looked_up", False)


def mark_as_taken(variable: Any) -> None:
    """Says of a variable that an optimizer which takes row gradients was built for it."""
    if is_looked_up(variable):
        variable.is_taken = True


def is_taken(variable: Any) -> bool:
    """Whether `mark_as_taken` was called for this variable."""
    return getattr(variable, "is_taken", False)
