"""Differentiate and compile pure functions on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def value_and_gradients(
    function: Callable[[list[Any]], Any], values: list[Any], differentiable: bool = False
) -> tuple[Any, list[Any]]:
    return jax.value_and_grad(function)(values)


def compiled(function: Callable) -> Callable:
    return jax.jit(function)
