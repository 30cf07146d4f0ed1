"""Looking rows up on TensorFlow, with a gradient of rows for us and a dense one for all others."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.execution.rows import is_taken
from keras_tfopt.execution.versions import is_multi_optimizer


def look_up(table: Any, ids: Any) -> Any:
    """Rows of a table; see `keras_tfopt.execution.lookup`."""
    ids = tf.where(ids < 0, ids + table.shape[0], ids)
    if _goes_to_ours(table):
        # From the variable itself: its value, taken before, may be copied when rows are written.
        return tf.gather(table.value, ids)
    return tf.gather(_with_dense_gradient(tf.convert_to_tensor(table.value)), ids)


@tf.custom_gradient
def _with_dense_gradient(value: Any) -> Any:
    # Optimizers of Keras square and clip `tf.IndexedSlices` without summing repeated ids before.
    return tf.identity(value), tf.convert_to_tensor


def _goes_to_ours(table: Any) -> bool:
    """Whether an optimizer of ours is going to get the gradient.

    Inside of a model's `train_step` that is known. Elsewhere it is supposed of a table for which
    one was built.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name.endswith("train_step"):
            trainer = frame.f_locals.get("self")
            if isinstance(trainer, keras.Model) and getattr(trainer, "optimizer", None) is not None:
                return _is_ours(trainer.optimizer, table)
        frame = frame.f_back
    return is_taken(table)


def _is_ours(optimizer: Any, table: Any) -> bool:
    # What builds upon this module cannot be imported before it.
    from keras_tfopt.execution.engine import Engine
    from keras_tfopt.execution.wrapping import WrappingEngine

    if is_multi_optimizer(optimizer):
        return _is_ours(optimizer._optimizer_map(table), table)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _is_ours(optimizer.inner_optimizer, table)
    return isinstance(optimizer, (Engine, WrappingEngine))
