"""Gradients of a loss on TensorFlow, by a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.execution.eager import concretely, run_step  # noqa: F401
from keras_tfopt.execution.scopes import Reads, is_trainable


def is_variable(value: Any) -> bool:
    return isinstance(value, (keras.Variable, tf.Variable, tf.compat.v1.Variable))


def check_traceable(verb: str, assigns: bool = True) -> None:
    """Raises an error where nothing of this module would work."""
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
    """What the loss gives, its gradients, and the variables, found if they are None."""
    if variables is None:
        with tf.GradientTape() as tape, Reads() as scope:
            result = loss()
        variables = [v for v in scope.read.values() if is_trainable(v)]
        # TensorFlow's own variables, which no scope of Keras sees. It also watches those of Keras
        # that are no longer to be trained.
        known = {id(_native(variable)) for variable in scope.read.values()}
        variables += [v for v in tape.watched_variables() if id(v) not in known]
        values = [_native(variable) for variable in variables]
    else:
        values = [_native(variable) for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for value in values:
                tape.watch(value)
            result = loss()
    weight = None if seed is None else seed(result)
    return result, tape.gradient(result, values, output_gradients=weight), list(variables)


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable
