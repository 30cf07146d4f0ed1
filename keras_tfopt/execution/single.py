"""What is the same on backends where one process runs one copy of each variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

__all__ = [
    "OptimizerBase",
    "build_scope",
    "check_copyable",
    "colocated",
    "number",
    "once",
    "read",
    "reduce_replicas",
    "replicas",
    "run_in_pieces",
    "start_optimizer",
]

if TYPE_CHECKING:
    from keras_tfopt.execution.binding import ModelStep
    from keras_tfopt.execution.engine import Engine


def once(function: Callable[[], None]) -> None:
    function()


def build_scope(engine: Engine, variables: Sequence[Any]) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def check_copyable(variable: Any) -> None:
    """Any variable can be copied where it is created."""


def colocated(engine: Engine, variable: Any) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def read(variable: Any) -> Any:
    return variable.value


def number(variable: Any) -> float:
    return float(variable.value)


def replicas() -> int:
    return 1


def run_in_pieces(
    engine: Engine, step: ModelStep, grads: list[Any], scalars: dict[str, Any]
) -> bool:
    """Runs a step over all variables piece by piece, if that is of use here; else says no."""
    return False


def reduce_replicas(grads: list[Any]) -> list[Any]:
    return grads


# What the optimizers under their names in TensorFlow 1 derive from.
OptimizerBase = object


def start_optimizer(optimizer: Any, name: str, use_locking: bool) -> None:
    """What `OptimizerBase` does to begin with."""
    optimizer._name = name
