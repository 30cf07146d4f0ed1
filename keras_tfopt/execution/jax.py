"""Rules on JAX: as they are, for the caller's `jit` compiles them; rows in fixed-size pieces."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tfopt.execution import jax_lookup
from keras_tfopt.execution.jax_lookup import get_opaque_trace_state, look_up  # noqa: F401
from keras_tfopt.execution.jax_loss import (  # noqa: F401
    check_traceable,
    concretely,
    is_variable,
    loss_and_gradients,
)
from keras_tfopt.execution.jax_steps import run_step  # noqa: F401
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.single import *  # noqa: F403

if TYPE_CHECKING:
    from keras_tfopt.execution.binding import Update
    from keras_tfopt.execution.engine import Engine
    from keras_tfopt.execution.state import Like

# Rows of a dense gradient are found and updated in pieces of this many: a static shape that keeps
# the cost in proportion to the rows touched.
PIECE = 1024
# Many rows that are known are updated in pieces of this many numbers of a variable, which stay in
# the cache with what the rule makes of them.
NUMBERS = 1 << 18

jax.tree_util.register_pytree_node(
    RowGradient,
    lambda rows: ((rows.values, rows.indices), rows.shape),
    lambda shape, children: RowGradient._unchecked(children[0], children[1], shape),
)


def outside_compiler(function: Callable) -> Callable:
    return function


def no_gradients() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def layout(variable: Any, shape: tuple[int, ...]) -> Any:
    """Where a slot lives: where its variable does, if of the same shape, otherwise everywhere.

    Keras would go by the name, which has the variable's in it: a pattern that is meant for a table
    would match a slot of another rank.
    """
    if variable is not None and shape == tuple(variable.shape):
        return variable._layout
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    return keras.distribution.TensorLayout([None] * len(shape), distribution.device_mesh)


def copy_of(variable: Any, dtype: str) -> Any:
    # A buffer that two variables share cannot be donated to a compiled step.
    return jnp.array(variable.value, dtype=dtype, copy=True)


def own(value: Any) -> Any:
    """A value in a buffer that no variable has, which may be donated."""
    return jnp.array(value, copy=True)


def with_averages(function: Any, state: tuple, *args: Any) -> Any:
    """Runs a batch on averages. Keras hands the weights over with the state and takes them back."""
    weights, *rest = state
    result, new = function.function((function.values(weights), *rest), *args)
    return result, (weights, *new[1:])


def norm(x: Any) -> Any:
    """Euclidean norm of all of `x`."""
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> None:
    """Calls a function with tensors that have shapes and dtypes, but no values."""
    jax.eval_shape(function, *[jax.ShapeDtypeStruct(*one) for one in given])


def asks_for_value(error: Exception) -> bool:
    """Whether this is what such a tensor raises where its value is asked for."""
    return isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.JAXTypeError))


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    return jax_lookup.rows_of(gradient)


def scale_native(gradient: Any, scale: Any) -> Any:
    rows = jax_lookup.rows_of(gradient)
    assert rows is not None, "JAX has no other row gradients of its own."
    return rows.map(lambda values: values * scale.astype(values.dtype))


def is_dense(value: Any) -> bool:
    """Whether ids or a gradient are an ordinary tensor, neither sparse nor ragged."""
    return isinstance(value, jax.Array)


def is_ready(gradient: Any, variable: Any, like: Like) -> bool:
    """Whether a gradient is one that needs neither check nor conversion."""
    return False


def limits(tensor: Any) -> tuple[int, int] | None:
    if isinstance(tensor, jax.core.Tracer) or tensor.size == 0:
        return None
    array = np.asarray(tensor)  # inside a traced condition, JAX would trace even this
    return int(array.min()), int(array.max())


def is_finite(tensor: Any) -> bool | None:
    """Whether all of it is finite; None where that cannot be known yet."""
    return None if isinstance(tensor, jax.core.Tracer) else bool(jnp.all(jnp.isfinite(tensor)))


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """The value of one of two functions; the other is not called."""
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, true, false)
    return true() if bool(condition) else false()


def combine_rows(weights: Any, rows: Any) -> Any:
    """The sum of the rows of a matrix, each by its weight."""
    # One loop, with whatever follows; a product would be a call with a result in memory.
    return sum(weights[i] * rows[i] for i in range(rows.shape[0]))


def row_products(rows: Any, vector: Any) -> Any:
    """The scalar product of each of some long rows with a vector."""
    return rows @ vector


def eigh_is_slow() -> bool:
    """Whether decomposing a matrix takes much longer here than some dozens of products."""
    return False


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    """Distinct rows, ascending, padded to the length of `indices` with rows out of range."""
    rows, count = shape[0], indices.shape[0]
    inside = (indices >= 0) & (indices < rows)
    if isinstance(indices, jax.core.Tracer) and refused is not None:
        refused.assign(refused.value + jnp.sum(~inside).astype("int32"))
    indices = jnp.where(inside, indices, rows).astype("int32")
    values = jnp.where(_column(inside, values), values, 0)
    # `jnp.unique` would sort positions with the indices, which takes five times as long as indices.
    ordered = jnp.sort(indices)
    beyond = rows + jnp.arange(count, dtype="int32")
    distinct = jnp.sort(jnp.where(jnp.diff(ordered, prepend=-1) != 0, ordered, beyond))
    where = jnp.searchsorted(distinct, indices, method="scan_unrolled")
    return distinct, jax.ops.segment_sum(values, where, count)


def row_mask(gradient: Any) -> Any:
    """Which rows of the variable a gradient touches, shaped to broadcast over it."""
    if hasattr(gradient, "indices"):
        touched = jnp.ones(gradient.indices.shape[0], bool)
        if not gradient.named:
            touched = _nonzero(gradient.values)
        mask = jnp.zeros(gradient.shape[0], bool).at[gradient.indices].set(touched, mode="drop")
        return mask.reshape(-1, *[1] * (len(gradient.shape) - 1))
    return nonzero_rows(gradient)


def nonzero_rows(values: Any) -> Any:
    """Which rows hold anything but zeros, shaped to broadcast over the values."""
    return _column(_nonzero(values), values)


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    """The rows for which a mask of `nonzero_rows` holds, and their numbers.

    The others have numbers out of range, as the result has the same shape whatever the mask is.
    """
    rows = jnp.arange(values.shape[0], dtype="int32")
    chosen = jnp.reshape(mask, (-1,))
    return jnp.where(mask, values, 0), jnp.where(chosen, rows, values.shape[0] + rows)


def to_dense(rows: Any) -> Any:
    zeros = jnp.zeros(rows.shape, rows.values.dtype)
    return zeros.at[rows.indices].add(rows.values, mode="drop")


def take(variable: Any, indices: Any) -> Any:
    return variable.value.at[indices].get(mode="fill", fill_value=0)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Give a gradient to an optimizer that is not ours in a form that it takes."""
    return to_dense(gradient) if hasattr(gradient, "named") else gradient


def commit(engine: Engine, writes: list[tuple[Any, Any, Any]]) -> None:
    """Assigns `(variable, indices, an index or None, value)`."""
    for variable, indices, value in writes:
        if indices is not None:
            value = value.astype(variable.dtype)
            if jnp.ndim(indices) == 0:
                # In place, where a scatter after other uses of the variable would copy it.
                value = jax.lax.dynamic_update_index_in_dim(variable.value, value, indices, 0)
            else:
                value = variable.value.at[indices].set(value, mode="drop")
        variable.assign(value)


def run_in_place(
    engine: Engine, key: Any, function: Callable, variables: Sequence[Any], inputs: Any
) -> Any:
    """Calls `function(values, inputs)`, which returns a result and writes; makes the writes."""
    result, writes = function([variable.value for variable in variables], inputs)
    whole = [(n, value) for n, indices, value in writes if indices is None]
    parts = [write for write in writes if write[1] is not None]
    if parts:
        values, zero = _first(parts[0][1], [value for _, value in whole])
        whole = [(n, value) for (n, _), value in zip(whole, values, strict=True)]
        parts = [(n, indices + zero, value) for n, indices, value in parts]
    commit(engine, [(variables[n], None, value) for n, value in whole])
    commit(engine, [(variables[n], indices, value) for n, indices, value in parts])
    return result


def _first(number: Any, values: list[Any]) -> tuple[list[Any], Any]:
    """The values, and a zero that is known only when all of them are.

    A variable that is written in part is updated where it is only if all that reads it must come
    first, and the compiler sees no order but that of results used. It would compute a single entry
    apart, but does not look through a loop; this one makes no turn, because of two consecutive
    integers one is even, which the compiler does not know.
    """
    zero = _zero(number)

    def turn(state: tuple) -> tuple:
        return state[0] + 1, [-value for value in state[1]]

    _, values = jax.lax.while_loop(lambda state: state[0] < zero, turn, (jnp.int32(0), values))
    for value in values:
        if jnp.size(value):
            entry = jnp.ravel(value)[0].astype("float32")
            zero = zero + _zero(jax.lax.bitcast_convert_type(entry, "int32"))
    return values, zero


def _zero(number: Any) -> Any:
    number = jnp.int32(number)
    return (number * (number + 1)) & 1


def accumulate(engine: Engine, accumulator: Any, gradient: Any) -> None:
    if hasattr(gradient, "indices"):
        total = accumulator.value.at[gradient.indices].add(gradient.values, mode="drop")
    else:
        total = accumulator.value + gradient
    accumulator.assign(total)


def run_if(engine: Engine, condition: Any, step: Callable[[], None]) -> None:
    """Runs `step` where the condition holds.

    In compiled code it is a loop of one turn or none: what a loop carries is updated in place,
    whereas `lax.cond` would copy every variable and slot on each micro-step.
    """
    if not isinstance(condition, jax.core.Tracer):
        if bool(condition):
            step()
        return
    variables = [*engine._trainable_variables, *engine.variables]

    def turn(carried: tuple) -> tuple:
        mapping = list(zip(variables, carried[1], strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            step()
        return jnp.array(False), [scope.get_current_value(variable) for variable in variables]

    start = (condition, [variable.value for variable in variables])
    _, values = jax.lax.while_loop(lambda carried: carried[0], turn, start)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def execute(engine: Engine, updates: list[Update], scalars: dict[str, dict[str, Any]]) -> None:
    for update in updates:
        if 0 in update.variable.shape:
            continue
        values = [update.variable.value, *(slot.value for slot in update.slots)]
        known = scalars[update.kind.dtype]
        if update.kind.mode == "rows":
            if update.gradient.indices.shape[0] == 0:
                continue
            rows = update.gradient
            step = _update_rows
            if engine.scope == "element" and isinstance(rows.values, jax.core.Tracer):
                step = _update_rows_in_pieces
            new = step(engine, update, rows.indices, rows.values, values, known)
        elif update.kind.mode == "touched":
            new = _update_touched(engine, update, values, known)
        else:
            x, slots = engine.rule_call(update)(
                update.gradient, values[0], values[1:], known, update.mask
            )
            new = [x, *slots]
        commit(engine, update.writes(new))


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    """Gradients of a loss without arguments; what it assigns is dropped."""

    def of_values(values: list[Any]) -> Any:
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return loss()

    return jax.grad(of_values)([variable.value for variable in variables])


def place() -> Any:
    """Equal for code that is traced together; the body of a loop has a place of its own."""
    return get_opaque_trace_state()


def compilation(engine: Any) -> str:
    return "compiled with the training step by jax.jit"


def _update_rows(
    engine: Engine, update: Update, indices: Any, g: Any, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """New values of variable and slots after a step on some rows; `indices` distinct and sorted."""
    rows, cut = values[0].shape[0], update.cut
    sorted_rows = {"indices_are_sorted": True, "unique_indices": True}

    def take(value: Any) -> Any:
        # What padding gets is not written back; to fill it with zeros would be a pass of its own.
        return value.at[indices].get(mode="clip", **sorted_rows)

    old = [take(value) if by_row else value for value, by_row in zip(values, cut, strict=True)]
    x, slots = engine.rule_call(update)(g, old[0], old[1:], scalars)
    if not update.kind.named:
        indices = _pad(jnp.where(_nonzero(g), indices, rows), rows)
        sorted_rows = {"unique_indices": True}
    new = []
    for value, part, by_row in zip(values, [x, *slots], cut, strict=True):
        if part is not None and by_row:
            part = value.at[indices].set(part.astype(value.dtype), mode="drop", **sorted_rows)
        new.append(part)
    return new


def _update_rows_in_pieces(
    engine: Engine, update: Update, indices: Any, g: Any, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """`_update_rows` for a rule to which each row is its own concern."""
    rows, count = values[0].shape[0], indices.shape[0]
    piece = max(1, NUMBERS // max(1, math.prod(g.shape[1:])))
    pieces = -(-count // piece)
    if pieces == 1:
        return _update_rows(engine, update, indices, g, values, scalars)
    padding = pieces * piece - count
    indices = jnp.concatenate([indices, jnp.full(padding, rows, indices.dtype)])
    indices = _pad(indices, rows)
    g = jnp.pad(g, [(0, padding), *[(0, 0)] * (g.ndim - 1)])

    def turn(number: Any, values: list[Any]) -> list[Any]:
        part, part_g = (
            jax.lax.dynamic_slice_in_dim(x, number * piece, piece) for x in (indices, g)
        )
        new = _update_rows(engine, update, part, part_g, values, scalars)
        return [old if value is None else value for old, value in zip(values, new, strict=True)]

    return jax.lax.fori_loop(0, pieces, turn, values)


def _update_touched(
    engine: Engine, update: Update, values: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """A step on the rows in which a dense gradient is not zero, or that were named."""
    g, rows = update.gradient, update.gradient.shape[0]
    touched = _nonzero(g)
    if update.mask is not None:
        touched |= update.mask
    if not isinstance(g, jax.core.Tracer):
        count = int(touched.sum())
        if not count:
            return values
        size = 1 << (count - 1).bit_length()  # few distinct shapes, each of which is compiled
        indices = _pad(jnp.nonzero(touched, size=size, fill_value=rows)[0], rows)
        part = g.at[indices].get(mode="fill", fill_value=0)
        return _update_rows(engine, update, indices, part, values, scalars)
    # With a slot of the whole variable, one call only.
    piece = min(PIECE, rows) if all(update.cut) else rows
    upto = jnp.cumsum(touched.astype("int32"))

    def turn(carried: tuple) -> tuple:
        done, values = carried
        wanted = done + jnp.arange(1, piece + 1, dtype="int32")
        indices = _pad(jnp.searchsorted(upto, wanted, side="left").astype("int32"), rows)
        part = g.at[indices].get(mode="fill", fill_value=0)
        new = _update_rows(engine, update, indices, part, values, scalars)
        new = [old if value is None else value for old, value in zip(values, new, strict=True)]
        return done + piece, new

    _, values = jax.lax.while_loop(
        lambda carried: carried[0] < upto[-1], turn, (jnp.int32(0), values)
    )
    return values


def _pad(indices: Any, rows: int) -> Any:
    """Moves indices out of range to distinct places out of range, in ascending order."""
    beyond = rows + jnp.arange(indices.shape[0], dtype=indices.dtype)
    return jnp.where(indices >= rows, beyond, indices)


def _nonzero(values: Any) -> Any:
    # XLA finds the largest number in a third of the time that `any` takes.
    sizes = jnp.abs(values.reshape(values.shape[0], math.prod(values.shape[1:])))
    return jnp.max(sizes, axis=1, initial=0) != 0


def _column(mask: Any, values: Any) -> Any:
    return mask.reshape(-1, *[1] * (values.ndim - 1))
