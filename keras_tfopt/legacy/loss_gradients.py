"""Gradients of a loss that is a function without arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.building import distinct
from keras_tfopt.engine.state.scopes import is_real


def gradients_of_loss(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    weight: Any = None,
    likely: Sequence[Any] = (),
    by_rows: bool = False,
) -> list[tuple[Any, Any]]:
    """Return pairs of a gradient and a variable; None is for variables that the loss does not use.

    The gradients are those of the sum of the loss. Assignments in the function, such as to
    statistics and states of random generators, take place.

    Args:
        loss: Function without arguments.
        variables: Variables to differentiate by; None takes the trainable ones that `loss` reads.
        weight: Number or tensor that multiplies the loss before it is summed.
        likely: The variables that a similar loss has read.
        by_rows: Whether a variable that is used for lookups only gets a gradient of the rows looked
            up, as in TensorFlow.
    """

    def checked() -> Any:
        return checked_loss(loss())

    def seed(result: Any) -> Any:
        return _seed(weight, result)

    start = None if weight is None else seed
    if variables is None:
        _, found, read = backend.loss_and_gradients(checked, None, start, likely, by_rows)
        return list(zip(found, read, strict=True))
    real = distinct([variable for variable in variables if is_real(variable)])
    _, found, _ = backend.loss_and_gradients(checked, real, start, (), by_rows)
    gradients = {id(v): gradient for v, gradient in zip(real, found, strict=True)}
    return [(gradients.get(id(variable)), variable) for variable in variables]


def checked_loss(result: Any) -> Any:
    """Return a loss as a tensor, or raise an error."""
    if isinstance(result, keras.Variable):
        result = result.value
    if result is None or isinstance(result, (str, list, tuple, dict)):
        raise TypeError(f"Argument `loss` must return a tensor. Received: {result!r}")
    result = ops.convert_to_tensor(result)
    if not is_real(result):
        raise ValueError(
            "Argument `loss` must return floating-point numbers. Received: dtype "
            f"{keras.backend.standardize_dtype(result.dtype)}"
        )
    return result


def _seed(weight: Any, result: Any) -> Any:
    """Return `grad_loss` in the shape of the loss, or raise an error."""
    shape = tuple(result.shape)
    try:
        given = ops.convert_to_tensor(weight)
        dtype = keras.backend.standardize_dtype(given.dtype)
        is_number = dtype == "bool" or "int" in dtype or "float" in dtype
    except (TypeError, ValueError, AttributeError):
        is_number = False
    if not is_number:
        raise TypeError(
            f"Argument `grad_loss` must be a number, or a tensor of the loss's shape, {shape}. "
            f"Received: {weight!r}"
        )
    seeded = ops.cast(given, result.dtype) * ops.ones_like(result)
    if tuple(seeded.shape) != shape:
        raise ValueError(
            f"Argument `grad_loss` must have the shape of the loss, {shape}. "
            f"Received: shape {tuple(given.shape)}"
        )
    return seeded
