"""Prepare gradients for a rule: check them, sum repeated rows, clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import RowGradient, fits, is_looked_up
from keras_tfopt.engine.state.building import path_of
from keras_tfopt.engine.state.state import Like, own_copy

_TINY = 1e-6  # gradients of smaller norm are not divided by it


class Incoming(NamedTuple):
    """The gradients of a whole step, each with its variable."""

    grads: list[Any]
    variables: list[Any]
    places: list[int]
    """The places of the variables in the state."""
    named: list[Any]
    """For each accumulated gradient, the mask of rows that were named, or None."""

    def only(self, numbers: Sequence[int]) -> Incoming:
        """Return the gradients at these positions, with what belongs to them."""
        return Incoming(*([members[n] for n in numbers] for members in self))


NOTHING = Incoming([], [], [], [])


def sum_repeated(gradient: Any, refused: Any) -> Any:
    """Return the gradient with each row once; count rows out of range that compiled code drops."""
    # Never sum twice: XLA on a CPU gets that wrong.
    if not isinstance(gradient, RowGradient) or gradient.distinct:
        return gradient
    refused = refused if gradient.named else None  # a lookup cannot have been out of range
    indices, values = backend.sum_repeated(
        gradient.indices, gradient.values, gradient.shape, refused
    )
    return RowGradient.unchecked(
        values, indices, gradient.shape, named=gradient.named, distinct=True
    )


def is_named(gradient: Any) -> bool:
    """Return whether this is a row gradient whose rows all count as touched, even zeros."""
    return isinstance(gradient, RowGradient) and gradient.named


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of the variable's shape."""
    return backend.to_dense(gradient) if isinstance(gradient, RowGradient) else gradient


def values_of(gradient: Any) -> Any:
    """Return the numbers of a gradient: a dense one itself, or the values of rows."""
    return gradient.values if isinstance(gradient, RowGradient) else gradient


def refuse_unless_finite(owner: Any, values: Sequence[Any], variables: Sequence[Any]) -> None:
    """Raise an error unless the squares of all gradients are finite; compiled steps raise none."""
    squares = backend.squared_norms(values)
    if backend.is_finite(squares) is not False:
        return
    norms = ops.unstack(squares, len(variables))
    path = next(
        path_of(variable)
        for norm, variable in zip(norms, variables, strict=True)
        if not backend.is_finite(norm)
    )
    raise ValueError(
        f"{type(owner).__name__} keeps products of gradients, which must be finite. Received: NaN, "
        f"infinity, or numbers whose squares overflow, in the gradient of {path!r}; nothing has "
        "been changed. To leave such steps out, put SkipNonFinite around it; under mixed_float16, "
        "a LossScaleOptimizer"
    )


def all_finite(grads: Sequence[Any]) -> Any:
    """Return whether all numbers of checked gradients are finite, as a scalar."""
    return backend.all_finite([values_of(g) for g in grads])


def _map(function: Any, gradient: Any) -> Any:
    return gradient.map(function) if isinstance(gradient, RowGradient) else function(gradient)


def scaled(gradient: Any, scale: Any) -> Any:
    return _map(lambda values: values * ops.cast(scale, values.dtype), gradient)


def _with_values(grads: list[Any], values: list[Any]) -> list[Any]:
    """Return gradients of the same rows with other numbers."""
    return [_map(lambda _, new=new: new, g) for g, new in zip(grads, values, strict=True)]


def _shrinking(norm: Any, most: float | Sequence[float]) -> Any:
    """Return the factor that scales this norm down to at most `most`; or these norms."""
    bound = ops.convert_to_tensor(most, keras.backend.standardize_dtype(norm.dtype))
    # Not `ops.maximum`, which computes float64 in float32 on torch.
    return ops.where(norm <= bound, ops.ones_like(norm), bound / norm)


def shrinking_each(values: list[Any], most: float | Sequence[float]) -> list[Any]:
    """Return for each tensor the factor that scales it down to a norm of at most `most`."""
    norms = ops.sqrt(backend.squared_norms(values))
    return ops.unstack(_shrinking(norms, most), len(values))


def _shrinking_all(total: Any, most: float) -> Any:
    """Return the factor that scales several gradients down together; NaN if one is not finite."""
    # Finite gradients must not stay finite if another gradient is not.
    return _shrinking(total, most) + (total - total)


def norm(grads: list[Any], shards: Any = None) -> Any:
    """Return the norm over all gradients; with `shards`, also over those of other workers."""
    squares = backend.squared_norms([values_of(g) for g in grads])
    return ops.sqrt(ops.sum(squares)) if shards is None else shards.norm(squares)


def clipped_by_global_norm(grads: Sequence[Any], most: float) -> tuple[list[Any], Any]:
    """Scale gradients, which may be None, to a norm of at most `most`; return them and the norm."""
    summed = [sum_repeated(_tensor_or_rows(g), None) for g in grads if g is not None]
    if not summed:
        return list(grads), ops.zeros(())
    total = norm(summed)
    scale = _shrinking_all(total, most)
    return [None if g is None else _scaled_as_it_is(g, scale) for g in grads], total


def _tensor_or_rows(gradient: Any) -> Any:
    """Return a gradient in any form as a tensor or a RowGradient."""
    if isinstance(gradient, RowGradient):
        return gradient
    gradient = gradient if hasattr(gradient, "shape") else ops.convert_to_tensor(gradient)
    rows = backend.from_native(gradient, tuple(gradient.shape))
    return ops.convert_to_tensor(own_copy(gradient)) if rows is None else rows


def _scaled_as_it_is(gradient: Any, scale: Any) -> Any:
    seen = _tensor_or_rows(gradient)
    is_native = isinstance(seen, RowGradient) and seen is not gradient
    return backend.scale_native(gradient, scale) if is_native else scaled(seen, scale)


def clipped_by_unit(gradient: Any, x: Any, most: float, epsilon: float = 1e-3) -> Any:
    """Clip each unit of a gradient to at most `most` times the norm of the variable's unit.

    A unit is what makes one output. Its norm is over all but the last dimension of convolutions,
    over the first dimension of matrices and stacks of these, and over everything if at most one
    dimension is longer than 1. Norms of variables below `epsilon` count as `epsilon`.

    Args:
        gradient: A dense gradient, or one of distinct rows.
        x: The variable, of the gradient's data type.
        most: Number > 0.
        epsilon: Number > 0.
    """
    shape = tuple(x.shape)
    axes = (0,) if len(shape) in (2, 3) else tuple(range(len(shape) - 1))
    if sum(size > 1 for size in shape) <= 1:
        axes = tuple(range(len(shape)))

    def norm(values: Any) -> Any:
        squares = ops.square(values)
        return ops.sqrt(ops.sum(squares, axis=axes, keepdims=True) if axes else squares)

    def limited(values: Any) -> Any:
        of_x, of_g = norm(x), norm(values)
        limit = most * ops.where(of_x > epsilon, of_x, epsilon * ops.ones_like(of_x))
        below = ops.where(of_g > _TINY, of_g, _TINY * ops.ones_like(of_g))
        return ops.where(of_g < limit, values, values * (limit / below))

    return _map(limited, gradient)


def clip_units(optimizer: Any, incoming: Incoming) -> Incoming:
    """Return the gradients, clipped by unit for each variable whose entry has a limit."""
    entries = [optimizer._state.entries[place] for place in incoming.places]
    limited = [n for n, entry in enumerate(entries) if entry.unit_limit is not None]
    grads = [incoming.grads[n] for n in limited]
    each = []
    for n, g in zip(limited, grads, strict=True):
        x = backend.read(incoming.variables[n])
        each.append((values_of(g), ops.cast(x, entries[n].like.dtype)))

    def of(limit: float) -> Callable[..., list[Any]]:
        return lambda g, x: [clipped_by_unit(g, x, limit)]

    limits = [entries[n].unit_limit for n in limited]
    found = backend.map_alike(optimizer, "clip_units", of, limits, each)
    clipped = dict(zip(limited, _with_values(grads, [g for (g,) in found]), strict=True))
    return incoming._replace(grads=[clipped.get(n, g) for n, g in enumerate(incoming.grads)])


def check(
    gradient: Any, variable: Any, like: Like, names_rows: bool = False, casts: bool = False
) -> Any:
    """Return the gradient as a tensor or RowGradient to compute with, or raise an error.

    With `names_rows`, row gradients of the backend touch all rows that they name. With `casts`, a
    dense gradient stays in the dtype of its variable, as the rule will cast it.
    """
    rows = gradient
    if not isinstance(gradient, RowGradient):
        rows = backend.from_native(gradient, like.shape)
    if rows is None:
        try:
            gradient = ops.convert_to_tensor(own_copy(gradient))
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
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if casts and keras.backend.standardize_dtype(gradient.dtype) == dtype:
            return gradient
        return _in_dtype(gradient, like)
    if not like.shape or rows.shape != like.shape:
        raise ValueError(
            f"The row gradient of {like.path!r} must be for the variable's shape {like.shape}. "
            f"Received: {rows!r}"
        )
    # Distinct rows were checked before they were summed, and may be padded out of range by now.
    limits = None if rows.distinct else backend.limits(rows.indices)
    if limits is not None and (limits[0] < 0 or limits[1] >= like.shape[0]):
        raise ValueError(
            f"Row indices of the gradient of {like.path!r} must lie between 0 and "
            f"{like.shape[0] - 1}. Received: indices from {limits[0]} to {limits[1]}"
        )
    values = _in_dtype(rows.values, like)
    # Rows that were looked up are in the batch, even if their gradient is zero.
    named = rows.named or names_rows or is_looked_up(variable)
    return RowGradient.unchecked(
        values, rows.indices, like.shape, named=named, distinct=rows.distinct
    )


def _in_dtype(values: Any, like: Like) -> Any:
    """Return the numbers of a gradient in the data type to compute in; refuse complex ones."""
    if "complex" in str(values.dtype):
        raise TypeError(
            f"The gradient of {like.path!r} must have real numbers, as its variable does. "
            f"Received: dtype {keras.backend.standardize_dtype(values.dtype)}"
        )
    return ops.cast(values, like.dtype)


def clip_and_orient(optimizer: Any, grads: list[Any]) -> list[Any]:
    """Clip gradients by the optimizer's options, and negate them if it maximizes."""
    values = [values_of(g) for g in grads]
    if optimizer.clipvalue is not None:
        grads = _with_values(grads, backend.limit_all(values, optimizer.clipvalue))
    elif optimizer.clipnorm is not None:
        scales = shrinking_each(values, optimizer.clipnorm)
        grads = _with_values(grads, backend.scale_all(values, scales))
    elif optimizer.global_clipnorm is not None:
        scale = _shrinking_all(norm(grads, optimizer.shards), optimizer.global_clipnorm)
        grads = _with_values(grads, backend.scale_all(values, [scale] * len(values)))
    return [_map(ops.negative, g) for g in grads] if optimizer.maximize else grads
