"""Elementwise rules on PyTorch over flat memory, compiled once per rule.

Small variables of one kind are laid end to end, as recurrent layers of PyTorch do with theirs, and
so are their slots and, for the time of a step, their gradients; large ones are used where they are.
One function of `flat_step.py`, compiled for flat tensors of any length, then runs the rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.engine.backends.torch.flat_step import Blocks, flat_step, numbers_of
from keras_tfopt.engine.backends.torch.private import copy_all, keeps_casts, users_of, zero_all
from keras_tfopt.engine.state import BLOCK, MASTER, SCALES, has_codes, names_of_scales

if TYPE_CHECKING:
    from keras_tfopt.engine.hyperparameters import Rates
    from keras_tfopt.engine.moving import Update

SMALL = 1 << 16  # elements; to copy a gradient of as many takes no longer than a call
BUCKET = 1 << 19  # elements of a bucket: bounds the memory for copies of gradients
# `BLOCK` is elements of one variable that are summed together where a rule takes norms, in one
# pass and exactly, that have one learning rate where groups give several, and one scale as codes.
OWN_USERS = 2  # of a variable's memory, as PyTorch counts them: the tensor, and who counts

# Memory for the time of a step, by use, dtype and device. Of one optimizer: others may run in
# other threads.
Scratches = dict[tuple, torch.Tensor]


@dataclasses.dataclass
class Laid:
    """Tensors end to end: as a whole, and each as a view."""

    whole: torch.Tensor
    parts: list[torch.Tensor]
    gaps: list[torch.Tensor]  # between them


@dataclasses.dataclass
class Bucket:
    """Variables whose slots lie end to end in `flat`, one tensor a slot."""

    positions: list[int]  # in the list of updates
    step: Callable[..., None]  # the rule over flat tensors, in place
    flat: list[torch.Tensor]
    moved: list[Any]  # variables of Keras, of slots and others, whose values are views now
    addresses: list[int]  # at which they must be found
    # For rules with norms, means or numbers of a variable, and for several learning rates, memory
    # is a matrix of whole blocks, each of one variable: whose they are.
    blocks: Blocks | None
    # Whether memory is a matrix of blocks; so it is for slots in codes, which have a scale a block.
    in_blocks: bool
    # Views of what blocks are filled up with, and of what that is a copy of, where slots are codes:
    # the last value of each variable, which is as any other and so changes no scale.
    filling: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None
    # Gradients and variables laid out as the slots are; None where there is one, used as it is.
    g: Laid | None = None
    x: Laid | None = None
    x_is_copy: bool = False  # for the time of a step

    def gather(self, g: list[torch.Tensor], x: list[torch.Tensor]) -> tuple:
        """Flat gradient, variable and slots, and the blocks: what the compiled step takes."""
        if self.x is None or self.g is None:
            # An expanded gradient, as that of a sum, has strides that compiled code does not take.
            shape = (-1, BLOCK) if self.in_blocks else (-1,)
            flat = g[0].contiguous().view(shape), x[0].detach().view(shape)
            return *flat, self.flat, self.blocks
        if self.g.gaps and self.filling is None:
            zero_all([*self.g.gaps, *self.x.gaps])  # which must not count in norms
        copy_all(self.g.parts, g)
        if self.x_is_copy:
            copy_all(self.x.parts, x)
        if self.filling is not None:
            copy_all(*self.filling)
        return self.g.whole, self.x.whole, self.flat, self.blocks

    def scatter(self, x: list[torch.Tensor]) -> None:
        """Write the variables back."""
        if self.x is not None and self.x_is_copy:
            copy_all(x, self.x.parts)
        elif self.x is not None:
            # Or a backward pass would not notice that values which it needs have changed.
            torch.autograd.graph.increment_version(x)

    def is_intact(self) -> bool:
        """Return whether all that was moved is still there: assigning tensors detaches it."""
        return [variable._value.data_ptr() for variable in self.moved] == self.addresses


def run_fused(
    engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
) -> list[Update]:
    """Run what can be run over flat memory; return the other updates."""
    fused = list(filter(_is_plain_update, updates))
    if not fused:
        return updates
    key = ("plan", bool(fused[0].kind.around), tuple([u.index for u in fused]))
    plan = engine._fast.get(key)
    if plan is None or not all(map(Bucket.is_intact, plan)):
        plan = engine._fast[key] = _plan(engine, fused, scalars)
    for bucket in plan:
        members = [fused[position] for position in bucket.positions]
        x = [u.variable._value for u in members]
        given = bucket.gather([u.gradient for u in members], x)
        if bucket.blocks is not None and bucket.blocks.rates is not None:
            bucket.step(*given, _rates_of(members[0], scalars))
        else:
            bucket.step(*given, members[0].scalars_in(scalars))
        bucket.scatter(x)
    if len(fused) == len(updates):
        return []
    done = {id(update) for update in fused}
    return [update for update in updates if id(update) not in done]


def _is_plain_update(update: Update) -> bool:
    """Return whether a rule can run over flat memory, and has a plain tensor for a variable."""
    # Compiled code does not look again: subclasses may do anything.
    return (
        update.kind.flat
        and update.kind.mode == "dense"
        and type(update.gradient) is torch.Tensor
        and 0 not in update.like.shape
        and (not update.kind.stored or _can_be_blocks(update))
        # What a variable in half precision is compared with has to be rounded like it.
        and (MASTER not in update.names or keeps_casts())
    )


def _can_be_blocks(update: Update) -> bool:
    """Return whether memory of whole blocks has the blocks of the slots that are codes."""
    size, shape = math.prod(update.like.shape), update.like.shape
    for name, dtype, _ in update.kind.stored:
        by_row = dtype == "int8" and update.slots[update.names.index(name + SCALES)].ndim == 2
        if by_row and size // shape[0] % BLOCK:
            return False
    # What fills blocks up would count in norms.
    return update.kind.scope == "element" or size % BLOCK == 0 or not has_codes(update.kind.stored)


def _rates_of(update: Update, scalars: dict[tuple[str, int], Rates]) -> dict[str, Any]:
    """Return the scalars of a step for all learning rates of the rule of a variable."""
    return scalars[update.kind.dtype, update.kind.rule].together


def _plan(
    engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
) -> list[Bucket]:
    """All variables in buckets, one for a call of compiled code."""
    # All small variables of a kind lie in blocks, or none do: what is compiled is for one of both.
    with_rates = {u.kind for u in updates if u.rate}
    alike: dict[tuple, list[list[int]]] = {}
    filled: dict[tuple, int] = {}
    for position, update in enumerate(updates):
        value = update.variable._value
        size = value.numel()
        small = size <= SMALL
        in_blocks = has_codes(update.kind.stored)
        in_blocks |= small and (update.kind.scope != "element" or update.kind in with_rates)
        of_slots = update.names, numbers_of(update)
        key = (in_blocks, update.kind, of_slots, value.dtype, value.device)
        lists = alike.setdefault(key, [[]])
        if small and filled.get(key, 0) + size <= BUCKET:
            lists[0].append(position)
            filled[key] = filled.get(key, 0) + size
        elif small:
            lists.insert(0, [position])
            filled[key] = size
        else:
            lists.append([position])
    buckets = []
    for (in_blocks, *_), lists in alike.items():
        for positions in filter(None, lists):
            members = [updates[position] for position in positions]
            # One variable is a whole by itself; PyTorch 2.8 gets sums over a single block wrong.
            several = in_blocks and (len(positions) > 1 or has_codes(members[0].kind.stored))
            rates = _rates_of(members[0], scalars)
            buckets.append(_bucket(engine, members, positions, several, rates))
    return buckets


def _bucket(
    engine: Any,
    members: list[Update],
    positions: list[int],
    in_blocks: bool,
    scalars: dict[str, Any],
) -> Bucket:
    scratches: Scratches = engine._fast.setdefault(("scratches",), {})
    values = [u.variable._value for u in members]
    sizes = [value.numel() for value in values]
    rooms = [size + (-size % BLOCK if in_blocks else 0) for size in sizes]
    blocks, stored = None, members[0].kind.stored
    has_rates = len({u.rate for u in members}) > 1
    if in_blocks and (members[0].kind.scope != "element" or has_rates):
        counts = torch.tensor([room // BLOCK for room in rooms])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), counts).to(values[0].device)
        rates = torch.tensor([u.rate for u in members]).to(owner.device)
        zeros = members[0].gradient.new_zeros(len(sizes))
        rows = rates[owner] if has_rates else None
        firsts = (counts.cumsum(0) - counts).to(owner.device)
        blocks = Blocks(owner, rows, firsts, zeros.new_tensor(sizes), zeros)
    # Compiled code that reads a number for each block does not look which scalars are vectors.
    dimensions = None
    if blocks is not None and blocks.rates is not None:
        dimensions = tuple((name, value.ndim) for name, value in scalars.items())
    compiled, uncompiled = flat_step(engine, members[0], in_blocks, dimensions)
    # Sizes 0 and 1 would be compiled apart, which is not worth it.
    step = compiled if sum(rooms) > 1 else uncompiled
    bucket = Bucket(positions, step, [], [], [], blocks, in_blocks)
    fillings: list[Laid] = []

    def laid(whole: torch.Tensor) -> Laid:
        pieces = list(zip(whole.split(rooms), sizes, values, strict=True))
        return Laid(
            whole.view(-1, BLOCK) if in_blocks else whole,
            [piece[:size].view(value.shape) for piece, size, value in pieces],
            [piece[size:] for piece, size, _ in pieces if size < piece.numel()],
        )

    def laid_scales(slots: list) -> Laid:
        counts = [room // BLOCK for room in rooms]
        whole = slots[0]._value.new_zeros(sum(counts))
        parts = zip(whole.split(counts), slots, strict=True)
        return Laid(whole.view(-1, 1), [part.view(slot.shape) for part, slot in parts], [])

    scales, described = names_of_scales(stored), (members[0].names, numbers_of(members[0]))
    for name, is_number, *slots in zip(*described, *(u.slots for u in members), strict=True):
        is_scales = name in scales
        if is_number and blocks is None:  # of a variable alone in its bucket
            bucket.flat.append(slots[0]._value.detach())
            bucket.moved += slots
            continue
        if is_number:
            whole = slots[0]._value.new_zeros(len(slots))
            flat = Laid(whole, list(whole.unbind()), [])
        elif is_scales:
            flat = laid_scales(slots)
        else:
            flat = laid(slots[0]._value.new_zeros(sum(rooms)))
            fillings.append(flat)
        for slot, view in zip(slots, flat.parts, strict=True):
            view.copy_(slot._value.detach())
            slot._value = torch.nn.Parameter(view, requires_grad=False)
        bucket.flat.append(flat.whole)
        bucket.moved += slots
    is_padded = rooms != sizes
    if len(members) > 1 or is_padded or not values[0].is_contiguous():
        room = sum(rooms)
        bucket.g = laid(_scratch(scratches, "g", members[0].gradient, room))
        whole = _laid_end_to_end(values, rooms)
        bucket.x_is_copy = whole is None
        if whole is None:
            whole = _scratch(scratches, "x", values[0], room)
        else:
            bucket.moved += [u.variable for u in members]
        bucket.x = laid(whole)
        fillings += [bucket.g, bucket.x]
    if scales and is_padded:
        bucket.filling = _filling(fillings)
    bucket.addresses += [variable._value.data_ptr() for variable in bucket.moved]
    return bucket


def _filling(laid: list[Laid]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gaps between tensors, and as many copies of the last number before each."""
    gaps, lasts = [], []
    for one in laid:
        flat = one.whole.view(-1)
        for gap in one.gaps:
            gaps.append(gap)
            place = gap.storage_offset() - flat.storage_offset() - 1
            lasts.append(flat[place : place + 1].expand(gap.shape))
    return gaps, lasts


def _laid_end_to_end(values: list[torch.Tensor], rooms: list[int]) -> torch.Tensor | None:
    """Memory that holds variables one after the other, where it is possible to have them so."""
    if not all(v.is_contiguous() and type(v.data) is torch.Tensor for v in values):
        return None
    # Optimizers that come later find the variables like this, if without anything in between.
    if rooms == [v.numel() for v in values] and _are_adjacent(values):
        return values[0].detach().as_strided((sum(rooms),), (1,))
    if not all(_is_movable(value) for value in values):
        return None
    whole = values[0].new_zeros(sum(rooms))
    for value, part in zip(values, whole.split(rooms), strict=True):
        part = part[: value.numel()].view(value.shape)
        value.data = part.copy_(value.detach())
    return whole


def _are_adjacent(values: list[torch.Tensor]) -> bool:
    first = values[0]
    address, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for value in values:
        if value.data_ptr() != address or value.untyped_storage().data_ptr() != storage:
            return False
        address += value.nbytes
    return True


def _is_movable(value: torch.Tensor) -> bool:
    """Return whether a variable's values may be moved to other memory unnoticed."""
    storage = value.untyped_storage()
    # Other tensors and NumPy arrays may use the same memory, and other processes.
    shared = value.device.type == "cpu" and value.is_shared()
    return users_of(storage) == OWN_USERS and not shared and storage.nbytes() == value.nbytes


def _scratch(scratches: Scratches, use: str, like: torch.Tensor, size: int) -> torch.Tensor:
    """Memory for the time of a call of compiled code, the same for all calls."""
    key = (use, like.dtype, like.device)
    if key not in scratches or scratches[key].numel() < size:
        scratches[key] = torch.empty(size, dtype=like.dtype, device=like.device)
    return scratches[key][:size]
