"""Trace functions on TensorFlow: on shapes alone, or for a diagnosis."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.lookup import gradients_as_slices
from keras_tfopt.engine.backends.tensorflow.values import native


def outside_compiler(function: Callable) -> Callable:
    return tf.autograph.experimental.do_not_convert(function)


def concretely() -> contextlib.AbstractContextManager:
    return tf.init_scope()


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> bool:
    tensors = [tf.TensorSpec(*one) for one in given]
    tf.function(function, autograph=False).get_concrete_function(*tensors)
    return False


def asks_for_value(error: Exception) -> bool:
    said = str(error).lower()
    symbolic = isinstance(error, (NotImplementedError, TypeError)) and "symbolic" in said
    of_torch = "must be tensor, not" in said  # an operation of PyTorch says it
    return symbolic and not of_torch or isinstance(error, tf.errors.OperatorNotAllowedInGraphError)


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    values = [native(variable) for variable in variables]

    def run() -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for value in values:
                tape.watch(value)
            result = loss()
        with contextlib.nullcontext() if eagerly else gradients_as_slices():
            return tape.gradient(result, values)

    # Lookups in a loop have gradients of rows if it runs eagerly, and dense ones if it is traced.
    return run() if eagerly else tf.function(run, autograph=False)()


def place() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def compilation(engine: Any) -> str:
    functions = getattr(engine, "_fast", {}).values()
    if not any(hasattr(function, "get_concrete_function") for function in functions):
        return "run by tf.function of the training step"
    return "whole variables compiled by XLA, rows by tf.function of the training step"
