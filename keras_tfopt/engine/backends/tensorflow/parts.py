"""Update variables with int8 slots on a CPU in parts that stay in the cache.

`engine/backends/jax/parts.py` does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.values import has_accelerator
from keras_tfopt.engine.state.state import BLOCK, LEAST_DIVIDED, can_be_divided, names_of_scales

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

PART = 1 << 18  # numbers of a variable in one part, at most


def blocks_of_part(update: Update, old: list[Any], mask: Any) -> int:
    """Return how many blocks to update at once; 0 if a variable is not to be divided.

    Args:
        update: The variable, or one like it.
        old: Values of variable and slots.
        mask: The mask of rows, or None.
    """
    size = math.prod(old[0].shape)
    is_compiled = not (tf.executing_eagerly() or has_accelerator())
    if not (is_compiled and size % BLOCK == 0 and can_be_divided(update, old, mask)):
        return 0
    # All parts have the same size.
    blocks = size // BLOCK
    sizes = range(min(blocks, PART // BLOCK), LEAST_DIVIDED // BLOCK - 1, -1)
    return next((number for number in sizes if blocks % number == 0), 0)


def update_in_parts(
    update: Update, blocks: int, g: Any, old: list[Any], scalars: dict[str, Any]
) -> list[Any]:
    """Return what `update.call` does.

    Over a whole variable, XLA would keep an array for each slot, and would decode slots once each
    for the variable, the codes and the scales. It finds places in arrays of other shapes than
    blocks for each number, which takes longer than all else.

    Args:
        update: The variable, or one like it.
        blocks: The result of `blocks_of_part`.
        g: The gradient.
        old: Values of variable and slots.
        scalars: The scalars of the step.
    """
    count = math.prod(old[0].shape) // BLOCK // blocks
    scales = names_of_scales(update.kind.stored)
    sizes = [blocks if name in scales else blocks * BLOCK for name in ("", *update.names)]
    given = _divided(g, count, sizes[0])

    def update_part(n: Any, *arrays: tf.TensorArray) -> tuple:
        def compute() -> list[Any]:
            x, *slots = now = [array.read(n) for array in arrays]
            y, changed = update.call(given.read(n), x, slots, scalars, apart=run_apart)
            # A slot without a new value stays as it is.
            each = zip([y, *changed], now, strict=True)
            return [
                before if after is None else tf.cast(after, before.dtype) for after, before in each
            ]

        new = run_apart(compute)
        return n + 1, *[array.write(n, value) for array, value in zip(arrays, new, strict=True)]

    def run_apart(function: Callable[[], Any]) -> Any:
        return apart(scalars["step"], function)

    arrays = [_divided(value, count, size) for value, size in zip(old, sizes, strict=True)]
    _, *arrays = tf.while_loop(lambda n, *_: n < count, update_part, (0, *arrays))
    return [tf.reshape(a.stack(), v.shape) for a, v in zip(arrays, old, strict=True)]


def _divided(value: Any, count: int, size: int) -> tf.TensorArray:
    # XLA reads and writes parts of it in place.
    array = tf.TensorArray(value.dtype, count, element_shape=[size], clear_after_read=False)
    return array.unstack(tf.reshape(value, [count, size]))


def apart(step: Any, function: Callable[[], Any]) -> Any:
    """Return `function()` such that XLA stores it, and does not compute it again for each use.

    Args:
        step: Number of the step. It is never negative, but the compiler does not know that, so that
            it makes a loop of this.
        function: Function that returns a nest of tensors.
    """
    like = function()
    if not all(isinstance(one, tf.Tensor) for one in tf.nest.flatten(like)):
        return like  # which is wrong, or a number
    start = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), like)
    is_first = tf.cast(step >= 0, "int32")
    once = tf.while_loop(lambda n, _: n < is_first, lambda n, _: (n + 1, function()), (0, start))
    return once[1]
