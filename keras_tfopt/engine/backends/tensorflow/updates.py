"""Steps on TensorFlow: XLA compiles rules over whole variables, scatters write rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_tfopt.engine.arguments.hyperparameters import Over, over_sums
from keras_tfopt.engine.backends.tensorflow.lookup import NOTE, slices_of
from keras_tfopt.engine.backends.tensorflow.order import (
    compiled_over,
    is_ordered,
    update_in_order,
)
from keras_tfopt.engine.backends.tensorflow.parts import blocks_of_part, update_in_parts
from keras_tfopt.engine.backends.tensorflow.private import forget_watched_variables, in_xla
from keras_tfopt.engine.backends.tensorflow.rows import column, nonzero
from keras_tfopt.engine.backends.tensorflow.values import (
    assign,
    commit,
    native,
    replicas,
    take,
)
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.settings import in_plain
from keras_tfopt.engine.state.state import has_codes
from keras_tfopt.engine.step.shared_code import Shared

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.state.state import Like
    from keras_tfopt.engine.step.moving import Update

# Variables of one shape that are updated by one call of compiled code.
GROUP = 8
_shared = Shared()


def is_ready(gradient: Any, variable: Any, like: Like, casts: bool) -> bool:
    return (
        tf.executing_eagerly()
        and isinstance(gradient, tf.Tensor)
        and (gradient.dtype.name == like.dtype or casts and gradient.dtype.name == variable.dtype)
        and tuple(gradient.shape) == like.shape
        and getattr(gradient, NOTE, None) is None
    )


def reduce_replicas(grads: list[Any]) -> list[Any]:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return grads
    slices = [
        slices_of(g.values, g.indices, g.shape) if isinstance(g, RowGradient) else g for g in grads
    ]
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, slices)
    return [
        RowGradient.unchecked(s.values, s.indices, g.shape, named=g.named)
        if isinstance(g, RowGradient)
        else tf.ensure_shape(s, g.shape)
        for g, s in zip(grads, total, strict=True)
    ]


def execute(engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]) -> None:
    groups: dict[tuple, list[Update]] = {}
    for update in updates:
        if update.kind.mode in ("dense", "move_rows"):
            shape, dtype = update.variable.shape, str(update.variable.dtype)
            groups.setdefault((update.kind, update.names, shape, dtype), []).append(update)
    for key, members in groups.items():
        # Alike, they share compiled code; and few calls keep the cost of calling low. Codes take
        # much code, and much more time than a call.
        stored = members[0].kind.stored
        most = 1 if stored and has_codes(stored) else GROUP
        for start in range(0, len(members), most):
            group = members[start : start + most]
            _run_whole(engine, ("whole", len(group), *key), group, scalars)
    writes = []
    for update in updates:
        if update.kind.mode in ("rows", "touched"):
            writes.extend(_run_rows(engine, update, update.scalars_in(scalars)))
    commit(writes)


def run_if(engine: Any, condition: Any, step: Callable[[], None]) -> None:
    if tf.executing_eagerly():
        if bool(condition):
            step()
        return
    if replicas() == 1:
        tf.cond(condition, step, lambda: None)
        return

    def everywhere(strategy: Any, condition: Any) -> None:
        # A condition around a merge of the replicas has to be outside of the replicas.
        same = strategy.experimental_local_results(condition)[0]
        tf.cond(same, lambda: strategy.extended.call_for_each_replica(step), lambda: None)

    tf.distribute.get_replica_context().merge_call(everywhere, args=(condition,))


def run_in_place(
    engine: Any, key: Any, function: Callable, variables: Sequence[Any], inputs: Any
) -> Any:
    # Variables with a copy on each of several devices are not for XLA.
    spread = any(isinstance(native(v), tf.distribute.DistributedValues) for v in variables)
    if in_plain.get() or spread:
        result, writes = function([tf.convert_to_tensor(v) for v in variables], inputs)
        commit([(variables[n], indices, value) for n, indices, value in writes])
        return result
    if key not in engine._fast:
        engine._fast[key] = _in_place(function)
    result, later, copied = engine._fast[key]([native(v) for v in variables], inputs)
    # Of a variable that is written in part, XLA would make a copy.
    commit([(variables[n], *write) for n, write in later.items()])
    commit([(variables[n], indices, variables[source]) for (n, source), indices in copied.items()])
    return result


def _in_place(function: Callable) -> Callable:
    # TensorFlow warns of a function that is traced often. It tells functions apart by their code,
    # which all of these share, except where it is a partial one.
    one = functools.partial(_run_and_assign, function)
    return tf.function(one, jit_compile=True, autograph=False)


def _run_and_assign(
    function: Callable, variables: list[Any], inputs: Any
) -> tuple[Any, dict[int, tuple], dict[tuple[int, int], Any]]:
    result, writes = function([tf.convert_to_tensor(v) for v in variables], inputs)
    whole, later, copied = {}, {}, {}
    for n, indices, value in writes:
        if indices is None:
            assign(variables[n], None, value)
            whole[value.ref()] = n
    for n, indices, value in writes:
        if indices is not None and value.ref() in whole:
            # XLA would make a copy of what it assigns to a variable and returns as well.
            copied[n, whole[value.ref()]] = indices
        elif indices is not None:
            later[n] = indices, value
    forget_watched_variables()
    return result, later, copied


def _run_whole(
    engine: Any, key: tuple, group: list[Update], scalars: dict[tuple[str, int], Rates]
) -> None:
    call = group[0].call
    if in_plain.get() or not engine.fused:
        for update in group:
            x, *slots = map(tf.convert_to_tensor, (update.variable, *update.slots))
            known = update.scalars_in(scalars)
            x, slots = call(update.gradient, x, slots, known, update.mask)
            commit(update.writes([x, *slots]))
        return
    variables = [v for update in group for v in (update.variable, *update.slots)]
    each = len(variables) // len(group)

    def run(values: list[Any], inputs: tuple[list[tuple], dict]) -> tuple[None, list[tuple]]:
        writes = []
        for number, (g, mask, own) in enumerate(inputs[0]):
            start = number * each
            x, *slots = old = values[start : start + each]
            all_scalars = {**inputs[1], **own}
            over = compiled_over(all_scalars)
            if blocks := blocks_of_part(group[0], old, mask):
                new = update_in_parts(group[0], blocks, g, old, all_scalars)
            elif is_ordered(old, all_scalars):
                new = update_in_order(group[0], old, (g, all_scalars, mask), over)
            else:
                y, changed = call(g, x, slots, all_scalars, mask, over)
                new = [y, *changed]
            writes += [(start + n, None, v) for n, v in enumerate(new) if v is not None]
        return None, writes

    given = []
    rates = scalars[group[0].kind.dtype, group[0].kind.rule]
    same, by_rate = rates.together, []
    if rates.count > 1:
        by_rate = [name for name, value in same.items() if len(value.shape)]
        same = {name: value for name, value in same.items() if name not in by_rate}
    for update in group:
        own = {n: update.scalars_in(scalars)[n] for n in by_rate} if by_rate else {}
        given.append((update.gradient, update.mask, own))
    if key not in engine._fast and (group[0].kind.scope == "element" or engine.flat):
        rule, changing = engine.rule_to_share(group[0].kind.rule)
        made = _shared.find(engine, rule, changing, (key,), lambda: _in_place(run))
        engine._fast[key] = made
    run_in_place(engine, key, run, variables, (given, same))


def _run_masked(update: Update, touched: Any, scalars: dict[str, Any]) -> list[tuple]:
    """Return the writes of a step on touched rows, without a tensor of unknown size.

    XLA reserves memory for all rows of it anyway, and within a condition it ends the process.
    """
    old = [tf.convert_to_tensor(v) for v in (update.variable, *update.slots)]
    over = _over_rows(touched)
    x, slots = update.call(update.gradient, old[0], old[1:], scalars, None, over)
    new = [
        tf.where(column(touched, a), a, b) if a is not None and by_row else a
        for a, b, by_row in zip([x, *slots], old, update.cut, strict=True)
    ]
    return update.writes(new)


def _over_rows(touched: Any) -> Over:
    """Return the functions of a variable over touched rows only."""

    def total(values: Any) -> Any:
        return tf.reduce_sum(tf.where(column(touched, values), values, tf.zeros_like(values)))

    def mean(values: Any) -> Any:
        return total(values) / tf.maximum(total(tf.ones_like(values)), 1)

    return Over(over_sums(total).norm, total, mean)


def _run_rows(engine: Any, update: Update, scalars: dict[str, Any]) -> list[tuple]:
    """Return the writes of a step on some rows."""
    variables = [update.variable, *update.slots]
    cut = update.cut
    if update.kind.mode == "rows":
        indices, g = update.gradient.indices, update.gradient.values
    else:
        touched = nonzero(update.gradient)
        if update.mask is not None:
            touched |= update.mask
        if in_xla() and update.kind.flat:
            return _run_masked(update, touched, scalars)
        indices = tf.where(touched)[:, 0]
        g = tf.gather(update.gradient, indices)
    old = [
        take(v, indices) if by_row else tf.convert_to_tensor(v)
        for v, by_row in zip(variables, cut, strict=True)
    ]
    x, slots = update.call(g, old[0], old[1:], scalars)
    new = [x, *slots]
    if update.kind.mode == "rows" and not update.kind.named:
        # Masked ids put rows of zeros into the gradient; on other backends these are untouched.
        touched = nonzero(g)
        new = [
            tf.where(column(touched, a), a, b) if a is not None and by_row else a
            for a, b, by_row in zip(new, old, cut, strict=True)
        ]
    return update.writes(new, [indices if by_row else None for by_row in cut])
