"""Have XLA write large arrays in place on a CPU, by an order of computing.

`engine/backends/jax/order.py` does the same, and says how.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_tfopt.engine.arguments.hyperparameters import Over, known_over, mean, over_sums, sums_of
from keras_tfopt.engine.backends.tensorflow.values import has_accelerator, norm
from keras_tfopt.engine.backends.write_order import LARGE, in_order
from keras_tfopt.engine.state.state import has_codes

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

COMPUTED, READ = (32,), (16, 8)
"""Shapes of the blocks of a sum. XLA adds up their first dimension with all cores of a CPU.

The first shape is for what is computed on the way: with more in a block, XLA stores that first. The
second is for variables and gradients themselves.
"""


def compiled_over(scalars: dict[str, Any], block: tuple[int, ...] = COMPUTED) -> Over:
    """Return functions of a variable that XLA makes with all cores of a CPU."""
    if tf.executing_eagerly() or has_accelerator() or not scalars:
        return Over(norm, tf.reduce_sum, mean)

    def total(values: Any) -> Any:
        flat = tf.reshape(values, [-1])
        whole = flat.shape[0] - flat.shape[0] % math.prod(block)
        of_rows = tf.reduce_sum(tf.reshape(flat[:whole], [-1, *block]), axis=1)
        # If XLA knew that this is 1, it would make one sum of two.
        one = tf.cast(1 - _zero_of_all([next(iter(scalars.values()))]), flat.dtype)
        return tf.reduce_sum(of_rows * one) + tf.reduce_sum(flat[whole:])

    return over_sums(total)


def is_ordered(old: list[Any], scalars: dict[str, Any]) -> bool:
    """Return whether the order matters: for large arrays, compiled for a CPU."""
    is_large = math.prod(old[0].shape) > LARGE
    return is_large and bool(scalars) and not (tf.executing_eagerly() or has_accelerator())


def update_in_order(update: Update, old: list[Any], inputs: tuple, over: Over) -> list[Any]:
    """Return what `update.call` does, in an order in which XLA copies and keeps nothing.

    Args:
        update: The variable, or one like it.
        old: Values of variable and slots.
        inputs: Gradient, scalars and mask.
        over: Functions of the variable.
    """
    (g, scalars, mask), call = inputs, update.call
    # XLA does not know whether this holds. Whether it does makes no difference.
    condition = tf.cast(next(iter(scalars.values())), "float32") >= 0
    if update.kind.flat and update.kind.scope != "element":
        sums = _apart(condition, lambda: sums_of(call, over, g, old[0], old[1:], scalars, mask))
        if sums:
            g, over = tf.where(_zero_of_all(sums) == 0, g, tf.zeros_like(g)), known_over(sums)
        else:
            over = compiled_over(scalars, READ)

    def compute(g: Any, x: Any, *slots: Any) -> list[Any]:
        y, changed = call(g, x, [*slots], scalars, mask, over)
        return [y, *changed]

    if has_codes(update.kind.stored):  # codes and scales need a pass over the same values
        return compute(g, *old)
    return _in_order(condition, compute, g, old)


def _in_order(condition: Any, compute: Callable, g: Any, old: list[Any]) -> list[Any]:
    """Return the results of a function of a gradient, a variable and its slots.

    Each is computed by operations of its own, in the order of `in_order`.
    """
    known = [g, *old]  # values of `places`
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in known]
    program = tf.compat.v1.wrap_function(compute, specs)
    places, nodes = program.inputs[: len(known)], program.structured_outputs
    large = [n for n, v in enumerate(old) if nodes[n] is not None and math.prod(v.shape) > LARGE]
    before, after = [places[1 + n].ref() for n in large], [nodes[n].ref() for n in large]
    results: dict[int, Any] = {}
    for j, others in in_order(before, after, _parents):
        now = known
        if others:
            waited = functools.partial(_entries, [results[large[i]] for i in others])
            zero = _zero_of_all(_apart(condition, waited))
            now = [_known_with(zero, value) for value in known]
        node = nodes[large[j]]
        results[large[j]] = program.prune(places, node)(*now)
        if all(node is not place for place in places):  # as a slot for the last gradient is
            places, known = [*places, node], [*known, results[large[j]]]
    for n, node in enumerate(nodes):
        if n not in results:
            results[n] = None if node is None else program.prune(places, node)(*known)
    return [results[n] for n in range(len(nodes))]


def _parents(node: Any) -> list[Any]:
    return [tensor.ref() for tensor in node.deref().op.inputs]


def _known_with(zero: Any, value: Any) -> Any:
    """Return a value; a large one is known only when a zero is."""
    is_large = math.prod(value.shape) > LARGE
    return tf.where(zero == 0, value, tf.zeros_like(value)) if is_large else value


def _entries(values: list[Any]) -> list[Any]:
    return [tf.reshape(value, [-1])[0] for value in values]


def _apart(condition: Any, function: Callable[[], list[Any]]) -> list[Any]:
    """Return numbers that XLA computes apart from all else."""
    return tf.cond(condition, function, lambda: [tf.zeros_like(number) for number in function()])


def _zero_of_all(numbers: list[Any]) -> Any:
    """Return a zero that XLA knows only when all numbers are: of two integers, one is even."""
    number = tf.add_n([tf.bitcast(tf.cast(one, "float32"), "int32") for one in numbers])
    return (number * (number + 1)) & 1
