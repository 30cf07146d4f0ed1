"""Saved state: checked whole before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

LAYOUT = "layout"


def save(store: Any, variables: Sequence[Any], roles: Sequence[str]) -> None:
    """Writes variables by position, and beside them what each position is."""
    for position, variable in enumerate(variables):
        store[str(position)] = variable.numpy()
    if variables:
        text = json.dumps(list(roles)).encode()
        store[LAYOUT] = np.frombuffer(text, dtype="uint8")


def load(store: Any, variables: Sequence[Any], roles: Sequence[str], owner: str) -> None:
    """Reads what `save` wrote.

    Variables are told apart by position, shape and role, never by path: names that Keras makes up
    differ between two models of the same architecture.

    Raises:
        ValueError: if the state is that of another optimizer or of another model. Nothing has
            been changed then.
    """
    problem = f"The saved state does not fit the optimizer {owner!r}: "
    keys = set(store.keys())
    if LAYOUT not in keys:
        raise ValueError(
            problem + f"it was not written by this package. It holds the entries {sorted(keys)[:8]}"
        )
    saved = json.loads(np.asarray(store[LAYOUT]).astype("uint8").tobytes().decode())
    if not variables or len(saved) != len(variables):
        built = "" if len(variables) > 3 else " (is the optimizer built?)"
        raise ValueError(
            problem + f"it has {len(saved)} variables, {_summary(saved)}, and the optimizer has "
            f"{len(roles)}, {_summary(roles)}{built}"
        )
    arrays = []
    for position, (variable, role, name) in enumerate(zip(variables, roles, saved, strict=True)):
        if name != role:
            raise ValueError(problem + f"position {position} is {name!r} there and {role!r} here")
        if str(position) not in keys:
            raise ValueError(problem + f"position {position} ({role!r}) is missing")
        array = np.asarray(store[str(position)])
        if tuple(array.shape) != tuple(variable.shape):
            raise ValueError(
                problem + f"position {position} ({role!r}) has shape {tuple(array.shape)} there "
                f"and {tuple(variable.shape)} here"
            )
        arrays.append(array)
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _summary(roles: Sequence[str]) -> str:
    counts = {role: list(roles).count(role) for role in dict.fromkeys(roles)}
    return ", ".join(f"{count} x {role}" for role, count in counts.items())
