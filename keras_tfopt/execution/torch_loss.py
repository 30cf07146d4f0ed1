"""Gradients of a loss on PyTorch, by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import torch
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.torch.core import get_device

from keras_tfopt.execution.eager import concretely, run_step  # noqa: F401
from keras_tfopt.execution.scopes import Reads, is_trainable


def is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)


def check_traceable(verb: str, assigns: bool = True) -> None:
    """Nothing to refuse: compiled steps run the verbs outside of the compiler."""


def loss_and_gradients(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    seed: Callable[[Any], Any] | None,
    likely: Sequence[Any],
) -> tuple[Any, list[Any], list[Any]]:
    """What the loss gives, its gradients, and the variables, found if they are None."""
    with torch.enable_grad():
        if variables is None:
            with Reads() as scope:
                result = loss()
            variables = [v for v in scope.read.values() if is_trainable(v)]
            values = _values(variables)
        else:
            values = _values(variables)
            with _differentiable(values):
                result = loss()
        if not result.requires_grad or not values:
            gradients: Sequence[Any] = [None] * len(values)
        else:
            weight = None
            if seed is not None:
                weight = seed(result.detach())
            elif result.ndim > 0:
                weight = torch.ones_like(result)
            with _differentiable(values):
                gradients = torch.autograd.grad(result, values, weight, allow_unused=True)
    return result.detach(), list(gradients), list(variables)


def _values(variables: Sequence[Any]) -> list[Any]:
    """The tensors of variables."""
    # Reading one takes as long as an operation on it, most of which is to look for a scope.
    if in_stateless_scope() or get_device() == "meta":
        return [variable.value for variable in variables]
    return [variable._value for variable in variables]


def _differentiable(values: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Variables that are not trained have gradients all the same where they are asked for."""
    frozen = [value for value in values if not value.requires_grad]
    return _unfrozen(frozen) if frozen else contextlib.nullcontext()


@contextlib.contextmanager
def _unfrozen(frozen: Sequence[Any]) -> Iterator[None]:
    for value in frozen:
        value.requires_grad_(True)
    try:
        yield
    finally:
        for value in frozen:
            value.requires_grad_(False)
