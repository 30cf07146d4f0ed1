"""Differentiate and compile pure functions on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def value_and_gradients(
    function: Callable[[list[Any]], Any], values: list[Any], differentiable: bool = False
) -> tuple[Any, list[Any]]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        value = function(values)
    return value, tape.gradient(value, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def compiled(function: Callable) -> Callable:
    return tf.function(function, autograph=False, reduce_retracing=True)
