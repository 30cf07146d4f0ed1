"""Rules over all variables at once on PyTorch, in pieces that stay in the processor's cache.

Each operation on a large vector would be given new memory, which takes longer than to fill it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.execution.settings import is_plain
from keras_tfopt.execution.state import Rows

if TYPE_CHECKING:
    from keras_tfopt.execution.binding import ModelStep, ModelVariable

PIECE = 1 << 18  # entries


@dataclasses.dataclass
class Part:
    """Consecutive entries of one variable."""

    number: int
    start: int
    end: int


def run_in_pieces(step: ModelStep, grads: list[Any], scalars: dict[str, Any]) -> bool:
    """Runs a step over all variables piece by piece, if that is of use here; else says no."""
    values = [one.variable.value for one in step.variables]
    if is_plain() or not all(v.is_contiguous() and v.device.type == "cpu" for v in values):
        return False
    slots = {name: slot.value.detach() for name, slot in step.slots.items()}
    pieces = _pieces(step.variables)
    sums: dict[str, Any] = {}
    for piece in pieces:
        found = step.sums(_gradient(step, piece, grads), _cut(step, slots, piece), scalars)
        sums = {name: sums[name] + one for name, one in found.items()} if sums else found
    known, new = step.solve(sums, slots, scalars)
    for piece in pieces:
        cut = _cut(step, slots, piece)
        g, x = _gradient(step, piece, grads), _value(step, piece, scalars)
        x, changed = step.update(g, x, cut, scalars, known)
        for part, part_of_x in zip(piece, x.split([p.end - p.start for p in piece]), strict=True):
            one = step.variables[part.number]
            if grads[part.number] is not None:
                _flat(one.variable, part).copy_(part_of_x)
                if one.master is not None:
                    _flat(one.master, part).copy_(part_of_x)
        for name, value in changed.items():
            if isinstance(value, Rows):
                cut[name].index_copy_(0, value.index.reshape(1).long(), value.value[None])
            else:
                cut[name].copy_(value)
    for name, value in new.items():
        slots[name].copy_(value)
    return True


def _pieces(variables: Sequence[ModelVariable]) -> list[list[Part]]:
    """All entries in their order, in pieces of parts of one or several variables."""
    pieces: list[list[Part]] = []
    room = 0
    for number, one in enumerate(variables):
        start, size = 0, one.end - one.start
        while start < size:
            if not room:
                pieces.append([])
                room = PIECE
            end = min(start + room, size)
            pieces[-1].append(Part(number, start, end))
            room -= end - start
            start = end
    return pieces


def _gradient(step: ModelStep, piece: list[Part], grads: list[Any]) -> Any:
    like = next(g for g in grads if g is not None)
    return _joined(
        [
            like.new_zeros(part.end - part.start)
            if grads[part.number] is None
            else step.gradient(grads[part.number])[part.start : part.end]
            for part in piece
        ]
    )


def _value(step: ModelStep, piece: list[Part], scalars: dict[str, Any]) -> Any:
    values = []
    for part in piece:
        one = step.variables[part.number]
        master = None if one.master is None else _flat(one.master, part)
        values.append(step.value(one, _flat(one.variable, part), master, scalars))
    return _joined(values)


def _cut(step: ModelStep, slots: dict[str, Any], piece: list[Part]) -> dict[str, Any]:
    """The slots, of those with entries the ones of the piece."""
    start = step.variables[piece[0].number].start + piece[0].start
    end = step.variables[piece[-1].number].start + piece[-1].end
    return {
        name: value[..., start:end] if name in step.along else value
        for name, value in slots.items()
    }


def _flat(variable: Any, part: Part) -> Any:
    return variable.value.detach().view(-1)[part.start : part.end]


def _joined(parts: list[Any]) -> Any:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
