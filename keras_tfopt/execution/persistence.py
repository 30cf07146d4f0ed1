"""Saved state: checked whole before anything is changed."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.execution.binding import HYPERPARAMETER
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import own_copy

LAYOUT = "layout"
# State that is there before the optimizer is built, beside hyperparameters that are variables; all
# that an optimizer without variables has.
EARLY = ("iteration", "learning_rate")
# State that options and kinds of variables add to the slots.
OPTIONAL = ("refused_rows", "master_weight", "average", "accumulator", "touched_rows")


@dataclasses.dataclass(frozen=True)
class Saved:
    """State as it was read: what each variable is, and its value."""

    roles: list[str]
    arrays: list[np.ndarray]


def save(store: Any, variables: Sequence[Any], roles: Sequence[str], waiting: Saved | None) -> None:
    """Writes variables by position, and beside them what each position is.

    State that was loaded and still waits for the optimizer to be built is written as it came.
    """
    arrays = [variable.numpy() for variable in variables]
    if waiting is not None:
        roles, arrays = waiting.roles, waiting.arrays
    for position, array in enumerate(arrays):
        store[str(position)] = array
    if roles:
        text = json.dumps(list(roles)).encode()
        store[LAYOUT] = np.frombuffer(text, dtype="uint8")


def load(
    store: Any,
    variables: Sequence[Any],
    roles: Sequence[str],
    names: Sequence[str],
    optimizer: Any,
) -> Saved | None:
    """Reads what `save` wrote.

    Variables are told apart by position, shape and role, never by path: names that Keras makes up
    differ between two models of the same architecture.

    Args:
        store: Arrays by key.
        variables: The optimizer's own.
        roles: What each of them is.
        names: Names of its slots; all that is known before it is built.
        optimizer: The optimizer.

    Returns:
        None, or what has to wait until the optimizer is built; then call `restore`.

    Raises:
        ValueError: if the state is that of another optimizer or of another model. Nothing has
            been changed then.
    """
    keys = set(store.keys())
    if not keys:
        # A file of weights alone. Keras asks all the same.
        if optimizer.built:
            warnings.warn(
                f"There is no saved state for the optimizer {optimizer.name!r}, which stays as it "
                "is.",
                stacklevel=2,
            )
        return None
    if LAYOUT not in keys:
        raise ValueError(
            _problem(optimizer)
            + f"it was not written by this package. It holds the entries {sorted(keys)[:8]}. "
            + _WAY_OUT
        )
    saved = Saved(_roles_in(store[LAYOUT], optimizer), [])
    for position, role in enumerate(saved.roles):
        if str(position) not in keys:
            raise ValueError(_problem(optimizer) + f"position {position} ({role!r}) is missing")
        array = np.array(store[str(position)])
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(
                _problem(optimizer) + f"position {position} ({role!r}) must hold numbers. "
                f"Received: dtype {array.dtype}"
            )
        saved.arrays.append(array)
    if optimizer.built:
        restore(saved, variables, roles, optimizer)
        return None
    _check_names(saved, names, optimizer)
    early = len(roles)
    restore(Saved(saved.roles[:early], saved.arrays[:early]), variables, roles, optimizer)
    return saved


def restore(
    saved: Saved,
    variables: Sequence[Any],
    roles: Sequence[str],
    optimizer: Any,
    unless_changed: bool = False,
) -> None:
    """Puts saved state in place, after checking that all of it fits.

    With `unless_changed`, what there is before the optimizer is built has been put in place then
    and may have been assigned since.
    """
    problem = _problem(optimizer)
    if all(_is_early(role) for role in saved.roles):
        # Of an optimizer that had made no step: what is there beyond that is at its start.
        count = len(saved.roles)
        variables, roles = variables[:count], roles[:count]
    if len(saved.roles) != len(variables):
        raise ValueError(
            problem + f"it has {len(saved.roles)} variables, {_summary(saved.roles)}, and the "
            f"optimizer has {len(roles)}, {_summary(roles)}. {_WAY_OUT}"
        )
    for position, (variable, array, role, there) in enumerate(
        zip(variables, saved.arrays, roles, saved.roles, strict=True)
    ):
        if there != role:
            raise ValueError(problem + f"position {position} is {there!r} there and {role!r} here")
        if tuple(array.shape) != tuple(variable.shape):
            raise ValueError(
                problem + f"position {position} ({role!r}) has shape {tuple(array.shape)} there "
                f"and {tuple(variable.shape)} here"
            )
    for variable, array, role in zip(variables, saved.arrays, roles, strict=True):
        if unless_changed and _is_early(role):
            if not np.isclose(variable.numpy(), array, rtol=1e-6, atol=0):
                continue
        variable.assign(own_copy(array))


def restore_waiting(optimizer: Any, variables: Sequence[Any]) -> None:
    """Puts state in place that was loaded before the optimizer was built."""
    saved, optimizer._waiting = optimizer._waiting, None
    if saved is not None:
        with backend.build_scope(optimizer, optimizer._trainable_variables):
            restore(saved, variables, optimizer._roles(), optimizer, unless_changed=True)


def set_weights(
    optimizer: Any, weights: Sequence[Any], variables: Sequence[Any], roles: Sequence[str]
) -> None:
    """Assigns arrays in the order of the variables, after checking that they fit."""
    if not optimizer.built:
        raise ValueError(
            f"The optimizer {optimizer.name!r} has no state to set before it is built. "
            "Call `optimizer.build(variables)`."
        )
    if len(weights) != len(variables):
        raise ValueError(
            f"`set_weights` of the optimizer {optimizer.name!r} takes {len(variables)} arrays, "
            f"{_summary(roles)}. Received: {len(weights)}"
        )
    arrays = [np.array(ops.convert_to_numpy(weight)) for weight in weights]
    restore(Saved(list(roles), arrays), variables, roles, optimizer)


_WAY_OUT = (
    "To load the model's weights without it, pass `skip_mismatch=True` to `load_weights` or "
    "`compile=False` to `load_model`"
)


# Kinds of NumPy's: booleans, integers, floating-point numbers, and among the rest bfloat16.
_NUMBERS = "biufV"


def _roles_in(layout: Any, optimizer: Any) -> list[str]:
    """What the entry says that the positions are."""
    try:
        roles = json.loads(np.asarray(layout).astype("uint8").tobytes().decode())
    except (TypeError, ValueError):
        roles = None
    if not (isinstance(roles, list) and all(isinstance(role, str) for role in roles)):
        raise ValueError(
            _problem(optimizer) + f"its entry {LAYOUT!r}, a list of names as JSON, is damaged"
        )
    return roles


def _problem(optimizer: Any) -> str:
    return f"The saved state does not fit the optimizer {optimizer.name!r}: "


def _is_early(role: str) -> bool:
    return role in EARLY or role.startswith(HYPERPARAMETER)


def _check_names(saved: Saved, names: Sequence[str], optimizer: Any) -> None:
    """What can be said before the optimizer is built: whether the slots are called the same."""
    there = {_without_number(role) for role in saved.roles if not _is_early(role)}
    here = {_without_number(name) for name in names}
    if there and not here <= there <= {*here, *OPTIONAL}:
        raise ValueError(
            _problem(optimizer) + f"it has {_summary(saved.roles)}, and the optimizer has "
            f"the slots {list(names)}. {_WAY_OUT}"
        )


def _without_number(role: str) -> str:
    """The name that slots share of which a variable has one for each of its dimensions."""
    return re.sub(r"_\d+$", "", role)


def _summary(roles: Sequence[str]) -> str:
    counts = {role: list(roles).count(role) for role in dict.fromkeys(roles)}
    return ", ".join(f"{count} x {role}" for role, count in counts.items())
