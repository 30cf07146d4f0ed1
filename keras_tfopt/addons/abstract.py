"""Classes of TensorFlow Addons that are there to be asked for, not to be made."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any


class AveragedOptimizerWrapper(abc.ABC):  # noqa: B024
    """Abstract: `isinstance(optimizer, AveragedOptimizerWrapper)` is true of averages.

    Those are `MovingAverage` and `SWA`. Write a class of your own as a `keras_tfopt.Wrapper` that
    defines `average`.

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
    """Abstract: `isinstance(optimizer, DecoupledWeightDecayExtension)` is true of weight decay.

    That is `AdamW`, `SGDW` and what `extend_with_decoupled_weight_decay` returns. It is no class to
    derive from together with an optimizer, as in TensorFlow Addons.

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
