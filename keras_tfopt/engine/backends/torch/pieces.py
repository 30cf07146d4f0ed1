"""Run rules over all variables at once on PyTorch, in pieces that stay in the processor's cache.

Each operation on a large vector would get new memory, which takes longer than to fill it. The
functions of a rule for a piece are compiled once per rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.engine.backends.torch import compile as torch_compile
from keras_tfopt.engine.backends.torch.private import copy_all
from keras_tfopt.engine.backends.torch.values import is_on_gpu, unaliased, write_all
from keras_tfopt.engine.settings import in_plain
from keras_tfopt.engine.state.scopes import in_scope
from keras_tfopt.engine.state.state import FACTOR, Rows
from keras_tfopt.engine.step.shared_code import Shared
from keras_tfopt.engine.step.slicing import count, sliced

if TYPE_CHECKING:
    from keras_tfopt.engine.step.all_variables import ModelRule, ModelStep, ModelVariable

PIECE = 1 << 20  # entries of a piece
PIECE_ON_GPU = 1 << 26  # which bounds the memory for copies of variables and gradients

_compiled = Shared()


@dataclasses.dataclass
class Part:
    """Consecutive entries of one variable, and their places in slots with `every`."""

    number: int  # of the variable
    start: int  # in the variable
    end: int
    kept_start: int  # in a slot that keeps each `every`-th entry of all variables
    kept_end: int


@dataclasses.dataclass
class Flat:
    """Variables, their master copies and their gradients, each as a vector in its own memory."""

    variables: list[Any]
    masters: list[Any]  # None where there is no master copy
    grads: list[Any]  # None where a variable has no gradient
    rule: ModelRule

    def __post_init__(self) -> None:
        self.dtype = getattr(torch, self.rule.dtype)

    def gradient(self, piece: list[Part]) -> Any:
        """Return the gradient of a piece."""
        return _joined(
            [
                self.variables[part.number].new_zeros(part.end - part.start, dtype=self.dtype)
                if self.grads[part.number] is None
                else _part(self.grads[part.number], part).to(self.dtype)
                for part in piece
            ]
        )

    def values(self, piece: list[Part]) -> list[Any]:
        """Return the values of the parts of a piece, in the dtype of the arithmetic."""
        values = []
        for part in piece:
            x, master = _part(self.variables[part.number], part), self.masters[part.number]
            if master is None:  # the usual case, to be fast
                values.append(x.to(self.dtype))
            else:
                values.append(self.rule.value(x, _part(master, part)))
        return values

    def write(self, piece: list[Part], values: list[Any]) -> None:
        """Write new values of the parts of a piece to variables that have a gradient."""
        old, new = [], []
        for part, value in zip(piece, values, strict=True):
            if self.grads[part.number] is None:
                continue
            for vectors in (self.variables, self.masters):
                if vectors[part.number] is not None:
                    old.append(_part(vectors[part.number], part))
                    new.append(value)
        if old:
            copy_all(old, new)


def run_in_pieces(engine: Any, step: ModelStep, grads: list[Any], scalars: dict[str, Any]) -> bool:
    values = [one.variable.value for one in step.variables]
    devices = {v.device.type for v in values}
    on_one = len(devices) == 1 and "meta" not in devices
    if in_plain.get() or in_scope() or not (on_one and all(v.is_contiguous() for v in values)):
        return False
    on_gpu = is_on_gpu(values[0])
    slots = {name: slot.value.detach() for name, slot in step.slots.items()}
    flat = Flat(
        [v.detach().view(-1) for v in values],
        [None if v.master is None else v.master.value.detach().view(-1) for v in step.variables],
        [None if g is None else g.reshape(-1) for g in grads],
        step.rule,
    )
    pieces = _pieces(step.variables, step.rule.every, PIECE_ON_GPU if on_gpu else PIECE)
    sums_of, update = _compiled_parts(engine, step.rule, on_gpu)
    sums: dict[str, Any] = {}
    of_variables = (FACTOR, "weight_decay_rate")
    common = {name: value for name, value in scalars.items() if name not in of_variables}
    for piece in pieces:
        g, x = flat.gradient(piece), _joined(flat.values(piece))
        some = _sliced(step, piece, g, x)
        found = sums_of(g, x, _cut(step, slots, piece), common, some)
        sums = {name: sums[name] + one for name, one in found.items()} if sums else found
    known, new = step.rule.solve(sums, slots, common)
    for piece in pieces:
        cut = _cut(step, slots, piece)
        x, is_copy = _in_place_or_copied(step, piece, flat, scalars)
        g = flat.gradient(piece)
        rows = update(g, x, cut, common, known, _sliced(step, piece, g, x))
        for name, (index, value) in rows.items():
            cut[name][int(index)].copy_(value)
        if is_copy:
            flat.write(piece, _settled(step, piece, flat, x, scalars, known))
    write_all([slots[name] for name in new], list(new.values()))
    return True


def _compiled_parts(engine: Any, rule: ModelRule, on_gpu: bool) -> tuple[Callable, Callable]:
    """Return the functions `sums` and `update` of a rule, compiled for pieces."""
    changing = (*engine._changing, *engine._follows)
    key = ("pieces", rule.names, tuple(rule.along.items()), rule.dtype, changing, on_gpu)
    if key not in engine._fast:
        given = engine, rule.rule, changing, key
        engine._fast[key] = _compiled.find(*given, lambda: _compile(rule, on_gpu))
    return engine._fast[key]


def _compile(rule: ModelRule, on_gpu: bool) -> tuple[Callable, Callable]:
    def sums(g: Any, x: Any, slots: dict, scalars: dict, some: tuple) -> Any:
        return rule.sums(g, x, slots, scalars, some)

    def update(g: Any, x: Any, slots: dict, scalars: dict, known: dict, some: tuple) -> Any:
        """Update in place, except for rows of slots, which are returned."""
        y, changed = rule.update(g, x, slots, scalars, known, some)
        rows = {name: new for name, new in changed.items() if isinstance(new, Rows)}
        whole = {name: new for name, new in changed.items() if name not in rows}
        # Rows are written last, so they must be apart from all else.
        tensors = [x, *[slots[name] for name in (*whole, *rows)]]
        values = unaliased(tensors, [y, *whole.values(), *[new.value for new in rows.values()]])
        count = 1 + len(whole)
        for tensor, value in zip(tensors[:count], values[:count], strict=True):
            tensor.copy_(value)
        each = zip(rows.items(), values[count:], strict=True)
        return {name: (new.index, value) for (name, new), value in each}

    # Lengths that may differ must differ in the examples: compiled code takes equal ones for one.
    # The compiler chooses by them how threads of a GPU share the entries.
    thousand = 1 << 20 if on_gpu else 1000

    def entries(name: str) -> int:
        return (5 if rule.along[name] == 1 else 3) * thousand

    def like_many(slots: dict) -> dict:
        return {
            # Columns of a larger matrix, as in real pieces.
            n: v.new_ones(*v.shape[:-1], 6 * thousand)[..., 500 : 500 + entries(n)]
            if n in rule.along
            else v.clone()
            for n, v in slots.items()
        }

    def examples(g: Any, x: Any, slots: dict, *scalars_and_some: Any) -> tuple:
        *scalars, some = scalars_and_some
        part = tuple(one.new_ones(3 * thousand) for one in some)
        g, x = g.new_ones(5 * thousand), x.new_ones(5 * thousand)
        return g, x, like_many(slots), *scalars, part

    return (
        torch_compile.Compiled(sums, examples),
        torch_compile.Compiled(update, examples),
    )


def _pieces(variables: Sequence[ModelVariable], every: int, most: int) -> list[list[Part]]:
    """Return pieces with all entries in order; each is a list of parts of variables."""
    pieces: list[list[Part]] = []
    room = kept = 0
    for number, one in enumerate(variables):
        start, size = 0, one.end - one.start
        while start < size:
            if not room:
                pieces.append([])
                room = most
            end = min(start + room, size)
            kept_end = kept + count(end, every) - count(start, every)
            pieces[-1].append(Part(number, start, end, kept, kept_end))
            kept = kept_end
            room -= end - start
            start = end
    return pieces


def _in_place_or_copied(
    step: ModelStep, piece: list[Part], flat: Flat, scalars: dict[str, Any]
) -> tuple[Any, bool]:
    """Return the values of a piece for an update in place, and whether they are a copy."""
    values = flat.values(piece)
    if len(piece) == 1:
        (part,), (value,) = piece, values
        # Learning rate factors and weight decay need the old values after the update.
        decays = step.variables[part.number].decays
        is_own = not decays and FACTOR not in scalars and flat.grads[part.number] is not None
        if is_own and value.data_ptr() == _part(flat.variables[part.number], part).data_ptr():
            return value, False
    return torch.cat(values), True


def _settled(
    step: ModelStep,
    piece: list[Part],
    flat: Flat,
    new: Any,
    scalars: dict[str, Any],
    known: dict[str, Any],
) -> list[Any]:
    """Apply learning rate factors and weight decay to new values of a piece; return its parts."""
    parts = new.split([part.end - part.start for part in piece])
    variables = [step.variables[part.number] for part in piece]
    if FACTOR not in scalars and not any(one.decays for one in variables):
        return parts
    each = zip(variables, flat.values(piece), parts, strict=True)
    return [step.rule.settled(one, x, y, scalars, known) for one, x, y in each]


def _cut(step: ModelStep, slots: dict[str, Any], piece: list[Part]) -> dict[str, Any]:
    """Return the slots; from those with entries of all variables, only the entries of a piece."""
    start = step.variables[piece[0].number].start + piece[0].start
    end = step.variables[piece[-1].number].start + piece[-1].end
    kept = slice(piece[0].kept_start, piece[-1].kept_end)
    ranges = {
        name: slice(start, end) if every == 1 else kept for name, every in step.rule.along.items()
    }
    return {
        name: value[..., ranges[name]] if name in ranges else value for name, value in slots.items()
    }


def _sliced(step: ModelStep, piece: list[Part], *vectors: Any) -> tuple:
    """Return those entries of vectors for a piece that slots with `every` keep."""
    every, ranges, start = step.rule.every, [], 0
    if every == 1:
        return ()
    for part in piece:
        end = start + part.end - part.start
        ranges.append((start + -part.start % every, end))
        start = end
    return tuple(torch.cat(sliced(flat, ranges, every)) for flat in vectors)


def _part(vector: Any, part: Part) -> Any:
    whole = part.end - part.start == vector.shape[0]  # the usual case, to be fast
    return vector if whole else vector[part.start : part.end]


def _joined(parts: list[Any]) -> Any:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
