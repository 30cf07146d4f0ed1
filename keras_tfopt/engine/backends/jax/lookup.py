"""Looking rows up on JAX, so that an optimizer can find out which rows a gradient consists of.

JAX has no sparse gradients. The backward pass of a lookup gives the true dense gradient and notes
which ids and values it is the sum of. An optimizer that knows of the note takes these; nobody reads
the dense gradient then, and the compiler leaves it out. For others it is an ordinary gradient.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from keras_tfopt.engine.backends.jax.private import get_opaque_trace_state
from keras_tfopt.engine.keras_private import get_stateless_scope
from keras_tfopt.engine.rows import RowGradient, shards_of

# {identity of a dense gradient: (weak reference to it, the (ids, values) it is the sum of)}
NOTES: dict[int, tuple[weakref.ref, tuple[tuple[Any, Any], ...]]] = {}


def look_up(table: Any, ids: Any) -> Any:
    value, scope, shards = table.value, get_stateless_scope(), shards_of(table)
    if scope is None:
        return _look_up(shards, value, ids)[0]
    # Several lookups in one table are a chain, in which each hands the table on to the next. Their
    # gradients are then summed here and not by JAX, whose sums have no notes. What happens in a
    # trace of its own, such as the body of a loop, is left to JAX.
    chain = scope.__dict__.setdefault("keras_tfopt_lookups", {})
    trace = get_opaque_trace_state()
    before = chain.get(id(table))
    goes_on = before is not None and before[0] == trace and before[1] is value
    rows, handed_on = _look_up(shards, before[2] if goes_on else value, ids)
    chain[id(table)] = trace, value, handed_on
    return rows


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    pieces = _pieces_of(gradient)
    if pieces is None:
        return None
    ids = [ids.reshape(-1) for ids, _ in pieces]
    values = [values.reshape(-1, *shape[1:]) for _, values in pieces]
    return RowGradient.unchecked(jnp.concatenate(values), jnp.concatenate(ids), shape, named=False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _look_up(shards: Any, table: Any, ids: Any) -> Any:
    return _taken(shards, table, ids)[0], table


def _forward(shards: Any, table: Any, ids: Any) -> Any:
    rows, ids = _taken(shards, table.value, ids.value)
    return (rows, table.value), ids


def _taken(shards: Any, table: Any, ids: Any) -> tuple[Any, Any]:
    """Return rows of a table, NaN for ids out of range, and the ids counted from the first row."""
    counted = jnp.where(ids < 0, ids + table.shape[0], ids)
    if shards is None:
        return jnp.take(table, ids, axis=0), counted  # it would count negative ids once more
    counted = shards.everywhere(counted)
    return shards.take(table, counted), counted


def _backward(shards: Any, ids: Any, gradients: tuple[Any, Any]) -> tuple[Any, None]:
    values, later = gradients  # of the rows, and of the table as it was handed on
    if isinstance(values, SymbolicZero):  # nothing depends on this lookup
        return later, None
    pieces: tuple[tuple[Any, Any], ...] | None = ()
    if isinstance(later, SymbolicZero):
        later = jnp.zeros(later.shape, later.dtype)
        if shards is not None:
            later = shards.divided(later)
    else:
        pieces = _pieces_of(later)
    if shards is not None:  # the devices that have the rows need them
        values = shards.everywhere(values)
    dense = later.at[ids].add(values, mode="drop")
    if pieces is not None:
        key = id(dense)
        forget = weakref.ref(dense, lambda _: NOTES.pop(key, None))
        NOTES[key] = forget, (*pieces, (ids, values))
    return dense, None


def _pieces_of(gradient: Any) -> tuple[tuple[Any, Any], ...] | None:
    note = NOTES.get(id(gradient))
    return note[1] if note is not None and note[0]() is gradient else None


_look_up.defvjp(_forward, _backward, symbolic_zeros=True)
