"""Abstract classes of TensorFlow Addons, for `isinstance` only."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any


class AveragedOptimizerWrapper(abc.ABC):  # noqa: B024
    """Abstract base of `MovingAverage` and `SWA`, for `isinstance`.

    Write a class of your own as a `keras_tfopt.Wrapper` that defines `average`.

    Args:
        optimizer: As of `MovingAverage`.
        name: As of `MovingAverage`. Defaults to "AverageOptimizer".
        **kwargs: As of `MovingAverage`.

    Raises:
        TypeError: in any case.
    """

    def __init__(self, optimizer: Any, name: str = "AverageOptimizer", **kwargs: Any):
        raise TypeError(
            "AveragedOptimizerWrapper cannot be called or subclassed. Take MovingAverage or SWA, "
            "or write a keras_tfopt.Wrapper with `slots`, `after` and `average`. Received: "
            f"{optimizer!r}"
        )


class DecoupledWeightDecayExtension(abc.ABC):  # noqa: B024
    """Abstract base of optimizers with weight decay, for `isinstance`.

    These are `AdamW`, `SGDW` and the classes of `extend_with_decoupled_weight_decay`. Unlike in
    TensorFlow Addons, no class can derive from it together with an optimizer.

    Args:
        weight_decay: As of `AdamW`.
        exclude_from_weight_decay: As of `AdamW`. Defaults to None.
        **kwargs: As of `AdamW`.

    Raises:
        TypeError: in any case.
    """

    def __init__(
        self,
        weight_decay: Any,
        exclude_from_weight_decay: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        raise TypeError(
            "DecoupledWeightDecayExtension cannot be called or subclassed. Write "
            "`extend_with_decoupled_weight_decay(Optimizer)` for a class that is `Optimizer` with "
            f"weight decay. Received: weight_decay={weight_decay!r}"
        )
