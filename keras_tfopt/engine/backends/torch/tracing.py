"""Run functions on PyTorch outside the compiler, on shapes alone, or for a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from keras_tfopt.engine.backends.torch.private import writes_to


def outside_compiler(function: Callable) -> Callable:
    return torch.compiler.disable(function)


def as_step(function: Callable) -> Callable:
    return torch.no_grad()(function)


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> bool:
    tensors = [torch.empty(s, dtype=getattr(torch, d), device="meta") for s, d in given]
    with torch.no_grad(), keras.device("meta"):
        try:
            function(*tensors)
        except NotImplementedError as error:
            # PyTorch says so of operations that need values. Others are errors of the rule, whose
            # line may have been added.
            if "meta" not in str(error.__cause__ or error).lower():
                raise
    return any(map(writes_to, tensors))


def asks_for_value(error: Exception) -> bool:
    said = str(error)
    return any(
        words in said for words in ("on meta tensors", "meta tensor; no data", "meta device")
    )


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    with torch.enable_grad():
        values = [variable.value for variable in variables]
        return list(torch.autograd.grad(loss(), values, allow_unused=True))


def place() -> None:
    return None
