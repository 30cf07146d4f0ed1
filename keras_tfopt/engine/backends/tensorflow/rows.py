"""Row gradients on TensorFlow; in XLA, where their number of rows is static, with padding."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.lookup import pieces_of, slices_of
from keras_tfopt.engine.backends.tensorflow.private import in_xla
from keras_tfopt.engine.backends.tensorflow.values import replicas
from keras_tfopt.engine.rows import RowGradient

# For optimizers that are not ours, whether they take IndexedSlices, if it was tried.
_take_slices: Any = weakref.WeakKeyDictionary()


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    pieces = pieces_of(gradient)
    if pieces is not None:
        indices, values = pieces[0]
        if len(pieces) > 1:
            indices = tf.concat([tf.cast(ids, indices.dtype) for ids, _ in pieces], 0)
            values = tf.concat([values for _, values in pieces], 0)
        return RowGradient.unchecked(values, indices, shape, named=False)
    if not isinstance(gradient, tf.IndexedSlices):
        return None
    known = None
    if gradient.dense_shape is not None:
        known = tf.get_static_value(gradient.dense_shape)
    shape = shape if known is None else tuple(int(size) for size in known)
    indices = tf.reshape(gradient.indices, [-1])
    return RowGradient.unchecked(gradient.values, indices, shape, named=False)


def scale_native(gradient: Any, scale: Any) -> Any:
    rows = from_native(gradient, tuple(gradient.shape))
    assert rows is not None
    values = rows.values * tf.cast(scale, rows.values.dtype)
    return slices_of(values, rows.indices, rows.shape)


def is_dense(value: Any) -> bool:
    return isinstance(value, tf.Tensor)


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    indices, values = tf.reshape(indices, [-1]), tf.reshape(values, [-1, *shape[1:]])
    compiled = not tf.executing_eagerly()
    outside = (indices < 0) | (indices >= shape[0])
    if refused is not None and compiled and replicas() == 1:
        refused.assign(refused.value + tf.reduce_sum(tf.cast(outside, "int32")))
    if in_xla() and indices.shape[0]:
        return _sum_repeated_in_xla(indices, values, shape[0], outside)
    if refused is not None and compiled and not in_xla():
        # XLA ignores such rows when it writes. Without XLA they raise an error amid a step.
        indices, values = indices[~outside], values[~outside]
    distinct, where = tf.unique(indices)
    return distinct, tf.math.unsorted_segment_sum(values, where, tf.shape(distinct)[0])


def _sum_repeated_in_xla(indices: Any, values: Any, rows: int, outside: Any) -> tuple[Any, Any]:
    """Return distinct rows in ascending order, padded with rows out of range, and their sums.

    In XLA, `tf.unique` takes several times as long, because the length of its result is unknown.
    """
    count = indices.shape[0]
    indices = tf.where(outside, tf.constant(rows, indices.dtype), indices)
    values = tf.where(column(outside, values), tf.zeros_like(values), values)
    order = tf.argsort(indices)
    ordered = tf.gather(indices, order)
    starts = tf.concat([[0], tf.cast(ordered[1:] != ordered[:-1], "int32")], 0)
    place = tf.cumsum(starts)
    total = tf.math.unsorted_segment_sum(tf.gather(values, order), place, count)
    distinct = tf.math.unsorted_segment_min(ordered, place, count)
    beyond = rows + tf.range(count, dtype=indices.dtype)
    return tf.where(distinct >= rows, beyond, distinct), total


def row_mask(gradient: Any) -> Any:
    if not isinstance(gradient, RowGradient):
        return column(nonzero(gradient), gradient)
    touched = tf.ones_like(gradient.indices, dtype="int32")
    if not gradient.named:
        touched = tf.cast(nonzero(gradient.values), "int32")
    mask = tf.math.unsorted_segment_sum(touched, gradient.indices, gradient.shape[0]) > 0
    return column(mask, gradient)


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    if not in_xla():
        indices = tf.where(tf.reshape(mask, [-1]))[:, 0]
        return tf.gather(values, indices), indices
    rows = tf.range(values.shape[0])
    beyond = tf.where(tf.reshape(mask, [-1]), rows, values.shape[0] + rows)
    return tf.where(mask, values, tf.zeros_like(values)), beyond


def to_dense(rows: Any) -> Any:
    total = tf.math.unsorted_segment_sum(rows.values, rows.indices, rows.shape[0])
    return tf.reshape(total, rows.shape)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    if not isinstance(gradient, RowGradient):
        return tf.identity(gradient)  # within `tf.cond`, Keras takes no tensor from outside
    rows = gradient
    if optimizer not in _take_slices:
        _take_slices[optimizer] = _takes_slices(optimizer, rows, variable)
    if not _take_slices[optimizer]:
        return to_dense(rows)
    return slices_of(rows.values, rows.indices, rows.shape)


def _takes_slices(optimizer: Any, rows: Any, variable: Any) -> bool:
    """Return whether a step with IndexedSlices can be traced; no variable changes here."""
    if type(optimizer).update_step.__module__.startswith("keras."):
        # Optimizers of Keras treat both forms alike. But some fail for slices with a loss scale, or
        # for slices without rows.
        return False
    spec = tf.IndexedSlicesSpec(rows.shape, rows.values.dtype, rows.indices.dtype)
    with tf.init_scope():
        step = tf.function(lambda slices: optimizer.apply([slices], [variable]), autograph=False)
        try:
            step.get_concrete_function(spec)
        except Exception:  # whatever the code of others raises
            return False
    return True


def nonzero(values: Any) -> Any:
    return tf.reduce_any(values != 0, axis=list(range(1, len(values.shape))))


def column(mask: Any, values: Any) -> Any:
    return tf.reshape(mask, [-1, *[1] * (len(values.shape) - 1)])
