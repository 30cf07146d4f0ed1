"""Compute gradients of a loss on TensorFlow, with a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.lookup import gradients_as_slices
from keras_tfopt.engine.backends.tensorflow.values import native
from keras_tfopt.engine.state.scopes import Reads, is_trainable


def check_traceable(verb: str, assigns: bool = True) -> None:
    if not tf.executing_eagerly() and not tf.inside_function():
        raise RuntimeError(
            f"`{verb}` was called in a tf.compat.v1 graph. It works under eager execution and "
            "inside tf.function"
        )


def loss_and_gradients(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    seed: Callable[[Any], Any] | None,
    likely: Sequence[Any],
    by_rows: bool = False,
) -> tuple[Any, list[Any], list[Any]]:
    if variables is None:
        with tf.GradientTape() as tape, Reads() as scope:
            result = loss()
        variables = [v for v in scope.read.values() if is_trainable(v)]
        # Scopes of Keras do not see variables of TensorFlow itself. The tape does; it also watches
        # those of Keras that were frozen since they were created.
        known = {id(native(variable)) for variable in scope.read.values()}
        variables += [v for v in tape.watched_variables() if id(v) not in known]
        values = [native(variable) for variable in variables]
    else:
        values = [native(variable) for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for value in values:
                tape.watch(value)
            result = loss()
    weight = None if seed is None else seed(result)
    with gradients_as_slices():
        gradients = tape.gradient(result, values, output_gradients=weight)
    return result, gradients, list(variables)
