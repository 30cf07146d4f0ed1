"""Gradients of a loss that is a function without arguments, and the variables that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.execution.building import distinct
from keras_tfopt.execution.scopes import is_real
from keras_tfopt.execution.select import backend


class Found(NamedTuple):
    """A loss, its gradients, None where it does not depend on a variable, and the variables."""

    loss: Any
    gradients: list[Any]
    variables: list[Any]


def gradients_of_loss(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    weight: Any = None,
    likely: Sequence[Any] = (),
    by_rows: bool = False,
) -> Found:
    """Gradients of what a function gives: of the sum, if that is no scalar.

    Whatever the function assigns besides (statistics, states of random generators) is assigned.

    Args:
        loss: Function without arguments.
        variables: What to differentiate by; None is the trainable variables that `loss` reads.
        weight: What the gradient of the loss itself is, instead of one.
        likely: The variables that were found for a similar loss.
        by_rows: Whether variables that are only looked up in get gradients of the rows looked up,
            as in TensorFlow.
    """

    def seed(result: Any) -> Any:
        ones = ops.ones_like(result)
        seeded = ops.cast(ops.convert_to_tensor(weight), result.dtype) * ones
        if tuple(seeded.shape) != tuple(result.shape):
            raise ValueError(
                f"Argument `grad_loss` must have the shape of the loss, {tuple(result.shape)}. "
                f"Received: shape {tuple(ops.shape(weight))}"
            )
        return seeded

    def checked() -> Any:
        result = loss()
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

    start = None if weight is None else seed
    if variables is None:
        return Found(*backend.loss_and_gradients(checked, None, start, likely, by_rows))
    differentiable = distinct([variable for variable in variables if is_real(variable)])
    result, gradients, _ = backend.loss_and_gradients(checked, differentiable, start, (), by_rows)
    known = {id(v): g for v, g in zip(differentiable, gradients, strict=True)}
    return Found(result, [known.get(id(v)) for v in variables], list(variables))
