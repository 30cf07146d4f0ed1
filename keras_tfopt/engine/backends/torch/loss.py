"""Compute gradients of a loss on PyTorch, with autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from keras_tfopt.engine.backends.torch.private import indices_of
from keras_tfopt.engine.keras_private import in_stateless_scope, torch_device
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.scopes import Reads, is_trainable


def check_traceable(verb: str, assigns: bool = True) -> None:
    pass  # compiled steps call the verbs uncompiled


def loss_and_gradients(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    seed: Callable[[Any], Any] | None,
    likely: Sequence[Any],
    by_rows: bool = False,
) -> tuple[Any, list[Any], list[Any]]:
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
            rows = _looked_up(result, values) if by_rows else {}
            with _differentiable(values):
                gradients = torch.autograd.grad(result, values, weight, allow_unused=True)
            gradients = [
                _of_rows(g, rows[id(v)]) if id(v) in rows and g is not None else g
                for g, v in zip(gradients, values, strict=True)
            ]
    return result.detach(), list(gradients), list(variables)


def _looked_up(result: Any, values: Sequence[Any]) -> dict[int, list[Any]]:
    """Return the indices of lookups, by identity of variables that are used for nothing else."""
    uses: dict[int, list[Any]] = {id(value): [] for value in values}
    waiting, seen = [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for child, _ in node.next_functions:
            variable = getattr(child, "variable", None)
            if variable is None:
                waiting.append(child)
            elif id(variable) in uses:
                uses[id(variable)].append(indices_of(node))
    return {
        key: found for key, found in uses.items() if found and not any(i is None for i in found)
    }


def _of_rows(gradient: Any, indices: list[Any]) -> Any:
    """Return a dense gradient as the rows that `indices` name."""
    if not isinstance(gradient, torch.Tensor) or gradient.layout is not torch.strided:
        return gradient
    count = gradient.shape[0]
    named = torch.cat([one.reshape(-1) for one in indices]).long()
    rows = torch.unique(torch.where(named < 0, named + count, named))
    return RowGradient(gradient[rows], rows, tuple(gradient.shape))


def _values(variables: Sequence[Any]) -> list[Any]:
    """Return the tensors of variables."""
    # `variable.value` takes as long as an operation on it, mostly to look for a scope.
    if in_stateless_scope() or torch_device() == "meta":
        return [variable.value for variable in variables]
    return [variable._value for variable in variables]


@contextlib.contextmanager
def _differentiable(values: Sequence[Any]) -> Iterator[None]:
    """Have also variables that are not trainable require gradients in this context."""
    frozen = [value for value in values if not value.requires_grad]
    for value in frozen:
        value.requires_grad_(True)
    try:
        yield
    finally:
        for value in frozen:
            value.requires_grad_(False)
