"""Differentiate pure functions on PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def value_and_gradients(
    function: Callable[[list[Any]], Any], values: list[Any], differentiable: bool = False
) -> tuple[Any, list[Any]]:
    with torch.enable_grad():
        given = values
        if not differentiable:
            given = [value.detach().requires_grad_() for value in values]
        value = function(given)
        found: Any = [None] * len(given)
        if value.requires_grad:
            found = torch.autograd.grad(
                value, given, create_graph=differentiable, allow_unused=True
            )
    gradients = [
        torch.zeros_like(v) if g is None else g for g, v in zip(found, values, strict=True)
    ]
    return (value if differentiable else value.detach()), gradients


def compiled(function: Callable) -> Callable:
    return function
