"""Row (sparse) gradients, the same on every backend."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.state.state import Like, Slot, own_copy


class RowGradient:
    """The gradient of a variable for some of its rows.

    It touches exactly the rows that `indices` names, even if their values are zero. A row that is
    named several times gets the sum of its values. Pass it to `optimizer.apply` instead of a
    tensor. On JAX it is a pytree, so it can cross `jax.jit` and `jax.grad` boundaries.

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
        try:
            shape = tuple(int(size) for size in shape)
        except (TypeError, ValueError):
            message = f"Argument `shape` must be a tuple of integers. Received: {shape!r}"
            raise TypeError(message) from None
        values = _tensor("values", values)
        indices = _tensor("indices", indices, "int32")
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
        self.named, self.distinct = True, False

    @classmethod
    def unchecked(
        cls,
        values: Any,
        indices: Any,
        shape: tuple[int, ...],
        *,
        named: bool,
        distinct: bool = False,
    ) -> RowGradient:
        """Make a row gradient without checks, for the engine and for tree transformations.

        Args:
            values: The gradient of each row. Like `indices` and `shape`, it may be a placeholder of
                JAX.
            indices: The rows.
            shape: Shape of the whole variable.
            named: Whether all these rows count as touched. If not, as for `tf.IndexedSlices` and
                sparse tensors, only rows that are not zero count.
            distinct: Whether each row occurs once. Then indices may be padded out of range.
        """
        self = object.__new__(cls)
        self.values, self.indices, self.shape = values, indices, tuple(shape)
        self.named, self.distinct = named, distinct
        return self

    @property
    def dtype(self) -> str:
        """Data type of the values."""
        return keras.backend.standardize_dtype(self.values.dtype)

    def __truediv__(self, divisor: Any) -> RowGradient:
        return self.map(lambda values: values / ops.cast(divisor, values.dtype))

    def map(self, function: Any) -> RowGradient:
        """Return the same rows with `function(values)` for values."""
        values = function(self.values)
        return RowGradient.unchecked(
            values, self.indices, self.shape, named=self.named, distinct=self.distinct
        )

    def __repr__(self) -> str:
        return f"RowGradient({self.indices.shape[0]} rows of {self.shape}, dtype={self.dtype})"


def _tensor(name: str, value: Any, empty_dtype: str | None = None) -> Any:
    if hasattr(value, "dtype") and ops.is_tensor(value):
        return value
    if empty_dtype is not None and hasattr(value, "__len__") and len(value) == 0:
        return ops.zeros((0,), dtype=empty_dtype)  # an empty list would come out as floats
    try:
        return ops.convert_to_tensor(own_copy(value))
    except (TypeError, ValueError):
        message = f"Argument `{name}` must be a tensor or an array of numbers"
        raise TypeError(f"{message}. Received: {value!r}") from None


def fits(shape: Any, expected: tuple[Any, ...]) -> bool:
    """Return whether a shape, which may have unknown dimensions, can be the expected one."""
    shape = tuple(shape)
    if shape == expected:
        return True
    return len(shape) == len(expected) and all(
        have is None or want is None or have == want
        for have, want in zip(shape, expected, strict=True)
    )


def deliver_rows(table: Any) -> None:
    """Mark a variable as a table whose gradient has the rows that were looked up."""
    table.is_looked_up = True


def is_looked_up(variable: Any) -> bool:
    """Return whether `deliver_rows` was called for this variable."""
    return getattr(variable, "is_looked_up", False)


def divide_rows(variable: Any, shards: Any) -> None:
    """Mark a table, or a slot with the same rows, as divided by rows."""
    variable.row_shards = shards


def shards_of(variable: Any) -> Any:
    """Return how a table is divided by rows over devices or workers; None if it is whole."""
    return getattr(variable, "row_shards", None)


def whole_shape(variable: Any) -> tuple[int, ...]:
    """Return the shape of a variable; for a part of a table, that of the whole table."""
    shards, shape = shards_of(variable), tuple(variable.shape)
    return shape if shards is None else (shards.rows, *shape[1:])


def sees_rows(slot: Slot, like: Like) -> bool:
    """Return whether an update of some rows sees only these rows of a slot."""
    same = bool(like.shape) and tuple(slot.shape[:1]) == like.shape[:1]
    return same if slot.by_row is None else slot.by_row
