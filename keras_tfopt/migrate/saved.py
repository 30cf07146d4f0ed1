"""The state of an optimizer in a file, in one form for all programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class FileError(ValueError):
    """The error for a file that cannot be read, or does not fit; nothing has been changed."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Attributes:
        name: Its name in the file.
        array: Its value.
        slot: The name of the slot in the program that wrote it; "" for a weight.
        variable: The name of the variable that it belongs to, or the place of that variable among
            the trained ones in files without names.
    """

    name: str
    array: np.ndarray
    slot: str
    variable: str | int


@dataclasses.dataclass(frozen=True)
class Saved:
    """The state of an optimizer.

    Attributes:
        program: The program that wrote it: a key of `sources.SOURCES`.
        cls: Name of the optimizer's class there; None if the file does not say.
        tensors: The state of variables.
        steps: The number of steps done; None if the file does not say.
        learning_rate: A number; None if there is a schedule or the file does not say.
        arguments: The arguments of the class, as far as they are known.
        others: Scalars that belong to no variable, by name.
        weights: The variables of the model, if the file has them.
        notes: Remarks on the file.
        averages: The averages of variables that the option `use_ema` keeps.
        around: What wrappers of TensorFlow Addons keep: "slow" or "average" of variables.
    """

    program: str
    cls: str | None
    tensors: Sequence[Tensor]
    steps: int | None
    learning_rate: float | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: Sequence[Tensor] = ()
    notes: Sequence[str] = ()
    averages: Sequence[Tensor] = ()
    around: Sequence[Tensor] = ()

    @property
    def slots(self) -> list[str]:
        """The names of the slots."""
        return list(dict.fromkeys(tensor.slot for tensor in self.tensors))


def number(value: Any) -> float | None:
    """Return a number as a float, and None for anything else."""
    if isinstance(value, (bool, str)) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
