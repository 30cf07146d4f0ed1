"""Trace functions on JAX: on shapes alone, for a diagnosis, or amid known values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from keras_tfopt.engine.backends.jax.private import get_opaque_trace_state


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> bool:
    jax.eval_shape(function, *[jax.ShapeDtypeStruct(*one) for one in given])
    return False


def asks_for_value(error: Exception) -> bool:
    return isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.JAXTypeError))


def outside_compiler(function: Callable) -> Callable:
    return function


def concretely() -> contextlib.AbstractContextManager:
    return jax.ensure_compile_time_eval()


def with_averages(function: Any, *args: Any) -> Any:
    # Keras passes the weights as a part of the state, and takes them from the result.
    (weights, *rest), *given = args
    result, new = function.function((function.values(weights), *rest), *given)
    return result, (weights, *new[1:])


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    def of_values(values: list[Any]) -> Any:
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return loss()

    return jax.grad(of_values)([variable.value for variable in variables])


def place() -> Any:
    return get_opaque_trace_state()


def compilation(engine: Any) -> str:
    return "compiled with the training step by jax.jit"
