"""Row gradients on JAX, where the number of rows is static: indices out of range are padding."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from keras_tfopt.engine.backends.jax.lookup import from_native
from keras_tfopt.engine.rows import RowGradient

jax.tree_util.register_pytree_node(
    RowGradient,
    lambda rows: ((rows.values, rows.indices), (rows.shape, rows.named, rows.distinct)),
    lambda known, children: RowGradient.unchecked(
        children[0], children[1], known[0], named=known[1], distinct=known[2]
    ),
)


def scale_native(gradient: Any, scale: Any) -> Any:
    rows = from_native(gradient, gradient.shape)
    assert rows is not None, "JAX has no other row gradients of its own."
    values = rows.values * scale.astype(rows.values.dtype)
    return RowGradient.unchecked(values, rows.indices, rows.shape, named=True)


def is_dense(value: Any) -> bool:
    return isinstance(value, jax.Array)


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    rows, count = shape[0], indices.shape[0]
    inside = (indices >= 0) & (indices < rows)
    if isinstance(indices, jax.core.Tracer) and refused is not None:
        refused.assign(refused.value + jnp.sum(~inside).astype("int32"))
    indices = jnp.where(inside, indices, rows).astype("int32")
    values = jnp.where(_column(inside, values), values, 0)
    # `jnp.unique` sorts positions along with the indices, which takes five times as long.
    ordered = jnp.sort(indices)
    beyond = rows + jnp.arange(count, dtype="int32")
    distinct = jnp.sort(jnp.where(jnp.diff(ordered, prepend=-1) != 0, ordered, beyond))
    where = jnp.searchsorted(distinct, indices, method="scan_unrolled")
    return distinct, jax.ops.segment_sum(values, where, count)


def row_mask(gradient: Any) -> Any:
    if not isinstance(gradient, RowGradient):
        return _column(nonzero(gradient), gradient)
    touched = True if gradient.named else nonzero(gradient.values)
    mask = jnp.zeros(gradient.shape[0], bool).at[gradient.indices].set(touched, mode="drop")
    return _column(mask, gradient)


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    rows = jnp.arange(values.shape[0], dtype="int32")
    chosen = jnp.reshape(mask, (-1,))
    return jnp.where(mask, values, 0), jnp.where(chosen, rows, values.shape[0] + rows)


def to_dense(rows: Any) -> Any:
    zeros = jnp.zeros(rows.shape, rows.values.dtype)
    return zeros.at[rows.indices].add(rows.values, mode="drop")


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    return to_dense(gradient) if isinstance(gradient, RowGradient) else gradient


def pad(indices: Any, rows: int) -> Any:
    """Replace indices out of range by distinct ones out of range, in ascending order."""
    beyond = rows + jnp.arange(indices.shape[0], dtype=indices.dtype)
    return jnp.where(indices >= rows, beyond, indices)


def nonzero(values: Any) -> Any:
    # A maximum takes XLA a third of the time of `any`.
    sizes = jnp.abs(values.reshape(values.shape[0], math.prod(values.shape[1:])))
    return jnp.max(sizes, axis=1, initial=0) != 0


def _column(mask: Any, values: Any) -> Any:
    return mask.reshape(-1, *[1] * (len(values.shape) - 1))
