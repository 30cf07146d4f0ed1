"""Run the steps of rules on JAX, for the caller's `jit` to compile; rows in pieces of one size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras

from keras_tfopt.engine.backends.jax.lookup import NOTES
from keras_tfopt.engine.backends.jax.order import update_in_order, zero_after
from keras_tfopt.engine.backends.jax.parts import is_in_parts, update_in_parts
from keras_tfopt.engine.backends.jax.rows import nonzero, pad
from keras_tfopt.engine.backends.jax.sharding import placed, rows_placed, shards, split_like_slots
from keras_tfopt.engine.backends.jax.values import (
    commit,
    has_accelerator,
    is_compiled_for_one_cpu,
)
from keras_tfopt.engine.backends.write_order import LARGE
from keras_tfopt.engine.keras_private import get_stateless_scope
from keras_tfopt.engine.rows import shards_of
from keras_tfopt.engine.state.state import Rows

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.state.state import Like
    from keras_tfopt.engine.step.moving import Update

# Touched rows of a dense gradient are updated in pieces of this many rows. So shapes are static,
# and the time is in proportion to the number of these rows.
PIECE = 1024
# Rows of a row gradient are updated in pieces of this many numbers, which stay in the cache with
# what the rule computes from them.
NUMBERS = 1 << 18
PIECE_ON_GPU = 1 << 14  # rows of a piece where it takes longer to begin than to compute


def as_step(function: Callable) -> Callable:
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        if jax.config.jax_default_matmul_precision is not None:
            return function(*args, **options)
        # Otherwise GPUs round factors to TF32, which has 10 bits, and TPUs to bfloat16.
        with jax.default_matmul_precision("highest"):
            return function(*args, **options)

    return run


def is_ready(gradient: Any, variable: Any, like: Like, casts: bool) -> bool:
    return (
        isinstance(gradient, jax.Array)
        and not isinstance(gradient, jax.core.Tracer)
        and (gradient.dtype == like.dtype or casts and gradient.dtype == variable.dtype)
        and gradient.shape == like.shape
        and id(gradient) not in NOTES
    )


def execute(engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]) -> None:
    split = engine.shard_state and shards(engine)
    for update in updates:
        values = [v.value for v in (update.variable, *update.slots)]
        in_rows = update.kind.mode in ("rows", "touched")
        step = functools.partial(_run_rows, engine) if in_rows else _run_whole
        new = step(split, update, values, update.scalars_in(scalars))
        if split:
            owners = [update.variable, *update.slots]
            new = [
                value if value is None or isinstance(value, Rows) else placed(owner, value)
                for owner, value in zip(owners, new, strict=True)
            ]
        commit(update.writes(new))


def _run_whole(
    split: bool, update: Update, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Return new values of a variable and its slots, of which None are unchanged."""
    g, is_large = update.gradient, len(values) > 1 and values[0].size > LARGE
    if split and update.kind.scope == "element":
        g, values = split_like_slots(update, values)
    if update.kind.stored and not split and is_in_parts(update, g, values):
        x, slots = update_in_parts(update, g, values, scalars)
    elif is_large and not split and is_compiled_for_one_cpu(g):
        x, slots = update_in_order(update, g, values, scalars)
    else:
        x, slots = update.call(g, values[0], values[1:], scalars, update.mask)
    return [x, *slots]


def _run_rows(
    engine: Any, split: bool, update: Update, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Do the same for an update of rows."""
    g, kind, alone = update.gradient, update.kind, all(update.cut)
    is_empty = kind.mode == "rows" and g.indices.shape[0] == 0
    if 0 in update.variable.shape or is_empty and alone:
        return [None] * len(values)
    # Devices update their own rows of a divided table, if the rule needs no others. Otherwise XLA
    # decides what they exchange.
    is_local = alone and (kind.scope == "element" or engine.rows_alone)
    table = shards_of(update.variable) if is_local else None
    if kind.mode == "touched":
        run = functools.partial(_update_touched, split, update)
        run = run if table is None else functools.partial(table.update_touched, run)
        return run(g, update.mask, values, scalars)
    in_pieces = kind.scope == "element" and isinstance(g.values, jax.core.Tracer)
    run = functools.partial(_update_rows_in_pieces if in_pieces else _update_rows, split, update)
    run = run if table is None else functools.partial(table.update_rows, run)
    return run(g.indices, g.values, values, scalars)


def run_if(engine: Any, condition: Any, step: Callable[[], None]) -> None:
    if not isinstance(condition, jax.core.Tracer):
        if bool(condition):
            step()
        return
    scope, variables = get_stateless_scope(), [*engine._trainable_variables, *engine.variables]
    if scope is not None:  # `fit` gives no values of frozen variables
        variables = [v for v in variables if v.trainable or scope.get_current_value(v) is not None]

    def body(carried: tuple) -> tuple:
        mapping = list(zip(variables, carried[1], strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            step()
        return jnp.array(False), [scope.get_current_value(variable) for variable in variables]

    # A loop that runs at most once updates variables in place, where `cond` would copy them.
    start = (condition, [variable.value for variable in variables])
    _, values = jax.lax.while_loop(lambda carried: carried[0], body, start)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def run_in_place(
    engine: Any, key: Any, function: Callable, variables: Sequence[Any], inputs: Any
) -> Any:
    result, writes = function([variable.value for variable in variables], inputs)
    whole = [(n, value) for n, indices, value in writes if indices is None]
    parts = [write for write in writes if write[1] is not None]
    if parts and isinstance(parts[0][1], jax.core.Tracer):
        # XLA writes rows in place only if all that reads the variable must come first.
        zero = zero_after(parts[0][1], [value for _, value in whole if jnp.size(value)])
        parts = [(n, indices + zero, value) for n, indices, value in parts]
    commit([(variables[n], None, value) for n, value in whole])
    commit([(variables[n], indices, value) for n, indices, value in parts])
    return result


def _update_rows(
    split: bool, update: Update, indices: Any, g: Any, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Return new values of the variable and its slots; `indices` are distinct and sorted."""
    rows, cut = values[0].shape[0], update.cut
    sorted_rows = {"indices_are_sorted": True, "unique_indices": True}

    def take(value: Any) -> Any:
        # Values of padding are not written back. To make them zeros would take another pass.
        return value.at[indices].get(mode="clip", **sorted_rows)

    old = [take(value) if by_row else value for value, by_row in zip(values, cut, strict=True)]
    x, slots = update.call(g, old[0], old[1:], scalars)
    if not update.kind.named:
        indices = pad(jnp.where(nonzero(g), indices, rows), rows)
        sorted_rows = {"unique_indices": True}
    new = []
    if split and shards_of(update.variable) is None:
        # Otherwise XLA might gather the whole variable after an update in parts.
        x = rows_placed(update.variable, x) if cut[0] else x
    for value, part, by_row in zip(values, [x, *slots], cut, strict=True):
        if part is None:
            part = value
        elif by_row:
            part = value.at[indices].set(part.astype(value.dtype), mode="drop", **sorted_rows)
        new.append(part)
    return new


def _update_rows_in_pieces(
    split: bool, update: Update, indices: Any, g: Any, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Do the same as `_update_rows`, for rules of scope "element" that are compiled."""
    rows, count = values[0].shape[0], indices.shape[0]
    piece = max(1, NUMBERS // max(1, math.prod(g.shape[1:])))
    pieces = -(-count // piece)
    if pieces <= 1 or has_accelerator():
        return _update_rows(split, update, indices, g, values, scalars)
    padding = pieces * piece - count
    indices = jnp.concatenate([indices, jnp.full(padding, rows, indices.dtype)])
    indices = pad(indices, rows)
    g = jnp.pad(g, [(0, padding), *[(0, 0)] * (g.ndim - 1)])

    def body(number: Any, values: list[Any]) -> list[Any]:
        part, part_g = (
            jax.lax.dynamic_slice_in_dim(x, number * piece, piece) for x in (indices, g)
        )
        return _update_rows(split, update, part, part_g, values, scalars)

    return jax.lax.fori_loop(0, pieces, body, values)


def _update_touched(
    split: bool, update: Update, g: Any, mask: Any, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Update the rows in which a dense gradient is not zero, or that were named."""
    rows, touched = g.shape[0], nonzero(g)
    if mask is not None:
        touched |= mask
    if not isinstance(g, jax.core.Tracer):
        count = int(touched.sum())
        if not count and all(update.cut):
            return values
        size = 1 << (count - 1).bit_length()  # for few distinct shapes, as each is compiled
        indices = pad(jnp.nonzero(touched, size=size, fill_value=rows)[0], rows)
        part = g.at[indices].get(mode="fill", fill_value=0)
        return _update_rows(split, update, indices, part, values, scalars)
    # A slot of the whole variable needs one call with all rows, even if none is touched.
    piece = min(PIECE_ON_GPU if has_accelerator() else PIECE, rows) if all(update.cut) else rows
    upto = jnp.cumsum(touched.astype("int32"))

    def body(carried: tuple) -> tuple:
        done, values = carried
        wanted = done + jnp.arange(1, piece + 1, dtype="int32")
        indices = pad(jnp.searchsorted(upto, wanted, side="left").astype("int32"), rows)
        part = g.at[indices].get(mode="fill", fill_value=0)
        return done + piece, _update_rows(split, update, indices, part, values, scalars)

    start = jnp.int32(0), values
    if not all(update.cut):
        return body(start)[1]
    return jax.lax.while_loop(lambda carried: carried[0] < upto[-1], body, start)[1]
