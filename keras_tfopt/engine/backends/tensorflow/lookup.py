"""Look rows up on TensorFlow, with gradients that our optimizers can read as rows.

Keras's optimizers square and clip `tf.IndexedSlices` without summing repeated ids, so they must not
get any. The gradient of a lookup is a dense tensor with a note: the ids and values that it is the
sum of. Our optimizers read the note. Then nothing reads the dense tensor, and `tf.function` omits
it; eager code computes it.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.private import in_control_flow
from keras_tfopt.engine.settings import switched

# The graph in which gradients of lookups are `tf.IndexedSlices`, if any.
_slices_in: ContextVar[Any] = ContextVar("slices_in", default=None)

# The attribute of a dense gradient with the note.
NOTE = "keras_tfopt_rows"


def gradients_as_slices() -> contextlib.AbstractContextManager[None]:
    """Make gradients `tf.IndexedSlices` if a tape computes them in this context."""
    return switched(_slices_in, tf.compat.v1.get_default_graph())


def look_up(table: Any, ids: Any) -> Any:
    variable, shape = table.value, tuple(table.shape)
    ids = tf.where(ids < 0, ids + shape[0], ids)
    if tf.distribute.in_cross_replica_context():  # nothing is trained there
        return tf.gather(variable, ids)

    @tf.custom_gradient
    def noted(value: Any) -> tuple[Any, Any]:
        def gradient(slices: Any) -> Any:
            if not isinstance(slices, tf.IndexedSlices):  # a dense gradient, as of a loop
                return slices
            return _gradient(slices.indices, slices.values, shape)

        return tf.identity(value), gradient

    @tf.custom_gradient
    def connected(handle: Any, rows: Any) -> tuple[Any, Any]:
        def gradient(values: Any) -> tuple[Any, None]:
            return _gradient(ids, values, shape), None

        return tf.identity(rows), gradient

    # TensorFlow cannot differentiate a loop or condition with a handle as input of an operation.
    if in_control_flow() or not isinstance(variable, tf.Variable):
        return tf.gather(noted(tf.convert_to_tensor(variable)), ids)
    # If the step read the value of the table, writing rows would copy the table. So rows are
    # gathered from the variable without a gradient, and `connected` gives its handle the gradient.
    return connected(variable.handle, tf.stop_gradient(tf.gather(variable, ids)))


def _gradient(ids: Any, values: Any, shape: tuple[int, ...]) -> Any:
    ids, values = tf.reshape(ids, [-1]), tf.reshape(values, [-1, *shape[1:]])
    # Slices cannot leave the body of a loop, which is another graph.
    if _slices_in.get() is tf.compat.v1.get_default_graph():
        return slices_of(values, ids, shape)
    dense = tf.math.unsorted_segment_sum(values, ids, shape[0])
    setattr(dense, NOTE, (ids, values))
    return dense


def slices_of(values: Any, indices: Any, shape: tuple[int, ...]) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, indices, tf.constant(shape, "int64"))


def pieces_of(gradient: Any) -> list[tuple[Any, Any]] | None:
    """Return the (ids, values) that a gradient is the sum of; None if not only of lookups."""
    if not isinstance(gradient, tf.Tensor):
        return None
    note = getattr(gradient, NOTE, None)
    if note is not None:
        return [note]
    # Graphs may use eager tensors, which have no operation.
    if hasattr(gradient, "numpy") or gradient.op.type != "AddN":
        return None
    # A tape adds up the gradients of several lookups in one table.
    parts = [pieces_of(part) for part in gradient.op.inputs]
    return [piece for part in parts if part for piece in part] if all(parts) else None
