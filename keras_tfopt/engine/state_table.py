"""Show where the state of an optimizer is, as a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tfopt.engine.access import dtype_of
from keras_tfopt.engine.arguments.selection import check_built
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.inspection import table
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.rows import whole_shape
from keras_tfopt.engine.state.building import path_of, prepare


@dataclasses.dataclass(frozen=True)
class StateTable:
    """The pieces of an optimizer's state, with their places and sizes; prints as a table.

    Attributes:
        rows: A dictionary for each piece of state. Its keys are `variable` (path, or None),
            `state` (name), `dtype`, `shape`, `split`, `bytes` and `bytes_here` (on one device, or
            on this worker). `split` is "whole", the axes that are split over devices, or the worker
            that has the state.
    """

    rows: list[dict[str, Any]]

    @property
    def total(self) -> int:
        """The bytes of all state."""
        return sum(row["bytes"] for row in self.rows)

    @property
    def here(self) -> int:
        """The bytes on one device of a mesh, or on this worker."""
        return sum(row["bytes_here"] for row in self.rows)

    def __str__(self) -> str:
        titles = ["variable", "state", "dtype", "shape", "split", "bytes", "bytes here"]
        texts = [[_text(value) for value in row.values()] for row in self.rows]
        texts.append(["total", "", "", "", "", f"{self.total:,}", f"{self.here:,}"])
        return table(titles, texts)


def describe_state(optimizer: Any, model: keras.Model) -> StateTable:
    """Print and return where the state of an optimizer is, and its size.

    Args:
        optimizer: An optimizer of this package. It is built for the model if it is not built.
        model: A `keras.Model` or layer that is built.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "Argument `optimizer` must be an optimizer of keras_tfopt. Received: " + repr(optimizer)
        )
    check_built(model)
    prepare(optimizer, model.trainable_variables)
    rows = StateTable([row for part in parts(optimizer) for row in _rows_of(part)])
    print(rows)
    return rows


def _rows_of(optimizer: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(optimizer, Optimizer):
        for state in optimizer.variables:
            yield _row(None, state.name, state)
        return
    owner = {
        id(state): path_of(entry.variable)
        for entry in optimizer._state.entries
        for state in entry.state()
    }
    for state, role in zip(optimizer._variables, optimizer._roles(), strict=True):
        yield _row(owner.get(id(state)), role, state)


def _row(path: str | None, name: str, state: Any) -> dict[str, Any]:
    dtype = dtype_of(state)
    shape = whole_shape(state)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    split, part = backend.part_of(state)
    return {
        "variable": path,
        "state": name,
        "dtype": dtype,
        "shape": shape,
        "split": split,
        "bytes": size,
        "bytes_here": round(size * part),
    }


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
