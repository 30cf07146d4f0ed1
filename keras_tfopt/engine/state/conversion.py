"""Convert saved state to the dtypes in which an optimizer keeps its slots."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine.state.state import SCALES
from keras_tfopt.engine.state.stored import decode, encode, scales_shape


@dataclasses.dataclass(frozen=True)
class Saved:
    """State as it was read: the role and the value of each variable."""

    roles: list[str]
    arrays: list[np.ndarray]
    micro_steps: int | None = None
    """How many gradients are summed for a step, if they are."""


def without_scales(roles: Sequence[str]) -> list[str]:
    """Return the roles without those of scales, which follow the slot that they belong to."""
    return [role for place, role in enumerate(roles) if not _is_of_scales(roles, place)]


def _is_of_scales(roles: Sequence[str], place: int) -> bool:
    return place > 0 and roles[place] == roles[place - 1] + SCALES


def converted(optimizer: Any, saved: Saved, roles: Sequence[str]) -> Saved:
    """Return saved state with codes where the optimizer keeps codes, and numbers elsewhere.

    State that does not match the optimizer otherwise is returned unchanged, to be refused.

    Args:
        optimizer: The optimizer.
        saved: The state.
        roles: The roles of the optimizer's variables.
    """
    there = without_scales(saved.roles)
    if (
        SCALES not in "".join([*saved.roles, *roles])
        or there != without_scales(roles)[: len(there)]
    ):
        return saved
    variables, signs = optimizer._variables, _signs(optimizer)
    new = Saved([], [])
    place = mine = 0
    while place < len(saved.roles):
        role, array = saved.roles[place], saved.arrays[place]
        has_codes = place + 1 < len(saved.roles) and _is_of_scales(saved.roles, place + 1)
        wants_codes = mine + 1 < len(roles) and _is_of_scales(roles, mine + 1)
        scales = saved.arrays[place + 1] if has_codes else None
        signed = signs.get(id(variables[mine]), True)
        if has_codes:
            _check(optimizer, role, array, scales)
        if wants_codes and (scales is None or scales.shape != tuple(variables[mine + 1].shape)):
            if scales is not None:  # the blocks differ: within rows, or over all values
                array = _numbers(array, scales, signed)
            pair = _codes(array, tuple(variables[mine + 1].shape), variables[mine], signed)
        elif has_codes and not wants_codes:
            pair = (_numbers(array, scales, signed),)
        else:
            pair = (array,) if scales is None else (array, scales)
        new.roles.extend([role, role + SCALES][: len(pair)])
        new.arrays.extend(pair)
        place += 1 + has_codes
        mine += 1 + wants_codes
    return new


def _check(optimizer: Any, role: str, codes: np.ndarray, scales: Any) -> None:
    """Raise an error for codes in other blocks than those of this package."""
    shapes = [scales_shape(codes.shape, False)]
    if codes.ndim > 1:
        shapes.append(scales_shape(codes.shape, True))
    if codes.dtype != np.uint8 or tuple(scales.shape) not in shapes:
        raise ValueError(
            f"The saved state does not fit the optimizer {optimizer.name!r}: its slot {role!r} has "
            f"{codes.dtype} codes of shape {codes.shape} and scales of shape {scales.shape}, where "
            f"blocks of 256 values have uint8 codes, and scales of shape {shapes}"
        )


def _signs(optimizer: Any) -> dict[int, bool]:
    """Return whether slots may be negative, by the identity of their variables."""
    signs = {}
    for entry in optimizer._state.entries:
        described = optimizer.slots(entry.like) if entry.slots else {}
        for name, slot in entry.slots.items():
            if name in described:
                signs[id(slot)] = described[name].signed
    return signs


def _numbers(codes: np.ndarray, scales: Any, signed: bool) -> np.ndarray:
    tensors = ops.convert_to_tensor(codes), ops.convert_to_tensor(scales)
    return ops.convert_to_numpy(decode(*tensors, signed))


def _codes(
    array: np.ndarray, scales: tuple[int, ...], variable: Any, signed: bool
) -> tuple[np.ndarray, ...]:
    if tuple(array.shape) != tuple(variable.shape) or not math.prod(array.shape):
        return array, np.zeros(scales, "float32")  # which is refused
    tensors = encode(ops.convert_to_tensor(array.astype("float32")), scales, signed)
    return tuple(ops.convert_to_numpy(tensor) for tensor in tensors)
