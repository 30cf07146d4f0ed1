"""Look rows up on JAX, with gradients that our optimizers can read as rows.

JAX has no sparse gradients. The backward pass of a lookup returns the dense gradient, and notes the
ids and values that it is the sum of. Our optimizers read the note. Then nothing reads the dense
gradient, and the compiler omits it. For other optimizers it is an ordinary gradient.
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

# By identity of a dense gradient: a weak reference to it, and the pairs of ids and values.
NOTES: dict[int, tuple[weakref.ref, tuple[tuple[Any, Any], ...]]] = {}


def look_up(table: Any, ids: Any) -> Any:
    value, scope, shards = table.value, get_stateless_scope(), shards_of(table)
    if scope is None:
        return _look_up(shards, value, ids)[0]
    # Several lookups in one table are a chain: each returns the table for the next one. So
    # `_backward` sums their gradients, and not JAX, whose sums have no notes. A lookup in another
    # trace, such as the body of a loop, begins a new chain; JAX sums the gradients of chains.
    chains = scope.__dict__.setdefault("keras_tfopt_lookups", {})
    trace = get_opaque_trace_state()
    last = chains.get(id(table))
    continues = last is not None and last[0] == trace and last[1] is value
    rows, table_for_next = _look_up(shards, last[2] if continues else value, ids)
    chains[id(table)] = trace, value, table_for_next
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
    """Return rows of a table, NaN for ids out of range; and the ids, from the first row on."""
    counted = jnp.where(ids < 0, ids + table.shape[0], ids)
    if shards is None:
        # Not with `counted`: `take` itself counts negative ids from the end.
        return jnp.take(table, ids, axis=0), counted
    counted = shards.everywhere(counted)
    return shards.take(table, counted), counted


def _backward(shards: Any, ids: Any, gradients: tuple[Any, Any]) -> tuple[Any, None]:
    values, later = gradients  # of the rows, and of the table for the next lookup
    if isinstance(values, SymbolicZero):  # nothing depends on this lookup
        return later, None
    pieces: tuple[tuple[Any, Any], ...] | None = ()
    if isinstance(later, SymbolicZero):
        later = jnp.zeros(later.shape, later.dtype)
        if shards is not None:
            later = shards.divided(later)
    else:
        pieces = _pieces_of(later)
    if shards is not None:  # each device adds the values of its own rows
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
