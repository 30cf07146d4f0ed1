"""Gradients on their way to a rule: checked, repeated rows summed, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.binding import scalar, widest
from keras_tfopt.execution.rows import RowGradient, fits, is_looked_up
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like, own_copy


class Touched(RowGradient):
    """Rows under way through the engine.

    `named` if the user named them, so that they count as touched, zero or not. `distinct` once
    repeated rows are summed; summing twice is not only waste: XLA on CPU gets it wrong.
    """

    def __init__(
        self,
        values: Any,
        indices: Any,
        shape: tuple[int, ...],
        named: bool,
        distinct: bool = False,
    ):
        self.values, self.indices, self.shape = values, indices, shape
        self.named, self.distinct = named, distinct

    def map(self, function: Any) -> Touched:
        """The same rows with `function(values)` for values."""
        values = function(self.values)
        return Touched(values, self.indices, self.shape, self.named, self.distinct)


def sum_repeated(gradient: Any, refused: Any) -> Any:
    """The gradient with each row once; counts rows out of range that compiled code leaves out."""
    if not isinstance(gradient, Touched) or gradient.distinct:
        return gradient
    refused = refused if gradient.named else None  # a lookup cannot have been out of range
    indices, values = backend.sum_repeated(
        gradient.indices, gradient.values, gradient.shape, refused
    )
    return Touched(values, indices, gradient.shape, gradient.named, distinct=True)


def values_of(gradient: Any) -> Any:
    """The numbers of a gradient: all of it, or those of its rows."""
    return gradient.values if isinstance(gradient, Touched) else gradient


def all_finite(grads: Sequence[Any]) -> Any:
    """Whether all numbers of gradients that have been checked are finite, as a scalar."""
    return ops.all(ops.stack([ops.all(ops.isfinite(values_of(g))) for g in grads]))


def _map(function: Any, gradient: Any) -> Any:
    return gradient.map(function) if isinstance(gradient, Touched) else function(gradient)


def _scaled(gradient: Any, scale: Any) -> Any:
    return _map(lambda values: values * ops.cast(scale, values.dtype), gradient)


def _limited(values: Any, most: float) -> Any:
    bound = scalar(most, keras.backend.standardize_dtype(values.dtype))
    return ops.clip(values, -bound, bound)


def _shrinking(norm: Any, most: float) -> Any:
    """The factor that brings something of this norm to a norm of `most`, if it has a larger one."""
    bound = scalar(most, keras.backend.standardize_dtype(norm.dtype))
    # Not `ops.maximum`, which computes float64 in float32 on torch.
    return ops.where(norm <= bound, ops.ones_like(norm), bound / norm)


def _shrinking_all(total: Any, most: float) -> Any:
    """`_shrinking` for gradients that share a norm, of which only some may be not finite."""
    # The finite ones must not come out as if all were well.
    return _shrinking(total, most) + (total - total)


def norm(grads: list[Any]) -> Any:
    values = [values_of(g) for g in grads]
    dtype = widest([keras.backend.standardize_dtype(v.dtype) for v in values])
    return ops.sqrt(sum(ops.cast(ops.sum(ops.square(v)), dtype) for v in values))


def clipped_by_global_norm(grads: Sequence[Any], most: float) -> tuple[list[Any], Any]:
    """Gradients as they come, None among them, scaled to a norm of at most `most`; and the norm."""
    summed = []
    for gradient in grads:
        if gradient is None:
            continue
        rows = gradient
        if not isinstance(gradient, RowGradient):
            gradient = gradient if hasattr(gradient, "shape") else ops.convert_to_tensor(gradient)
            rows = backend.from_native(gradient, tuple(gradient.shape))
        if rows is None:
            summed.append(ops.convert_to_tensor(own_copy(gradient)))
        else:
            touched = Touched(rows.values, rows.indices, rows.shape, named=False)
            summed.append(sum_repeated(touched, None))
    if not summed:
        return list(grads), ops.zeros(())
    total = norm(summed)
    scale = _shrinking_all(total, most)
    return [None if g is None else _scaled_as_it_is(g, scale) for g in grads], total


def _scaled_as_it_is(gradient: Any, scale: Any) -> Any:
    if isinstance(gradient, RowGradient):
        return gradient.map(lambda values: values * ops.cast(scale, values.dtype))
    gradient = gradient if hasattr(gradient, "shape") else ops.convert_to_tensor(gradient)
    if backend.from_native(gradient, tuple(gradient.shape)) is not None:
        return backend.scale_native(gradient, scale)
    gradient = ops.convert_to_tensor(own_copy(gradient))
    return gradient * ops.cast(scale, gradient.dtype)


def check(gradient: Any, variable: Any, like: Like) -> Any:
    """The gradient as a tensor or RowGradient of the dtype of the arithmetic, or an error."""
    gradient = own_copy(gradient)
    if backend.is_ready(gradient, variable, like):
        return gradient
    rows = (
        gradient if isinstance(gradient, RowGradient) else backend.from_native(gradient, like.shape)
    )
    if rows is None:
        try:
            gradient = ops.convert_to_tensor(gradient)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"The gradient of {like.path!r} must be a tensor, an array or a row gradient. "
                f"Received: {gradient!r}"
            ) from error
        if not fits(gradient.shape, like.shape):
            raise ValueError(
                f"The gradient of {like.path!r} must have the variable's shape {like.shape}. "
                f"Received: shape {tuple(gradient.shape)}"
            )
        return ops.cast(gradient, like.dtype)
    if not like.shape or not fits(rows.shape, like.shape):
        raise ValueError(
            f"The row gradient of {like.path!r} must be for the variable's shape {like.shape}. "
            f"Received: {rows!r}"
        )
    # Rows that a wrapper has passed on were checked there, and may be padded out of range by now.
    limits = None if isinstance(gradient, Touched) else backend.limits(rows.indices)
    if limits is not None and (limits[0] < 0 or limits[1] >= like.shape[0]):
        raise ValueError(
            f"Row indices of the gradient of {like.path!r} must lie between 0 and "
            f"{like.shape[0] - 1}. Received: indices from {limits[0]} to {limits[1]}"
        )
    values = ops.cast(rows.values, like.dtype)
    if isinstance(gradient, Touched):
        return gradient.map(lambda _: values)
    # What is looked up in such a table is in the batch, be its gradient zero or not.
    named = isinstance(gradient, RowGradient) or is_looked_up(variable)
    return Touched(values, rows.indices, like.shape, named)


def clip_and_orient(optimizer: Any, grads: list[Any]) -> list[Any]:
    """Clips as the optimizer's options say, and turns gradients around where it maximizes."""
    grads = _clip(optimizer, grads)
    return [_map(ops.negative, g) for g in grads] if optimizer.maximize else grads


def _clip(optimizer: Any, grads: list[Any]) -> list[Any]:
    if optimizer.clipvalue is not None:
        return [_map(lambda v: _limited(v, optimizer.clipvalue), g) for g in grads]
    if optimizer.clipnorm is not None:
        return [_scaled(g, _shrinking(norm([g]), optimizer.clipnorm)) for g in grads]
    if optimizer.global_clipnorm is not None:
        total = norm(grads)
        scale = _shrinking_all(total, optimizer.global_clipnorm)
        return [_scaled(g, scale) for g in grads]
    return grads
