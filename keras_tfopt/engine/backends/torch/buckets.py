"""Run rules on PyTorch over buckets, which are flat tensors with many small variables.

Small variables of one kind lie end to end, like the weights of PyTorch's recurrent layers. So do
their slots and, during a step, their gradients. A large variable is a bucket by itself, and stays
where it is. A function of `flat_step.py`, compiled for any length, runs the rule over a bucket.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import torch

from keras_tfopt.engine.backends.torch import words
from keras_tfopt.engine.backends.torch.flat_step import Blocks, flat_step, numbers_of
from keras_tfopt.engine.backends.torch.private import copy_all, keeps_casts, users_of, zero_all
from keras_tfopt.engine.backends.torch.values import DTYPES, is_on_gpu
from keras_tfopt.engine.state.state import BLOCK, MASTER, SCALES, has_codes, names_of_scales

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.step.moving import Update

SMALL = 1 << 16  # elements; to copy a gradient of this size takes no longer than a call
BUCKET = 1 << 19  # elements of a bucket at most, which bounds the memory for copies of gradients
SMALL_ON_GPU, BUCKET_ON_GPU = 1 << 20, 1 << 24  # the same where a call takes longer than a copy
OWN_USERS = 2  # users of memory of one variable, as PyTorch counts: the variable and the counter

# Memory during a step, by use, dtype and device. Each optimizer has its own, as others may run in
# other threads.
Scratches = dict[tuple, torch.Tensor]


@dataclasses.dataclass
class Packed:
    """Tensors that lie end to end in one."""

    whole: torch.Tensor
    parts: list[torch.Tensor]  # a view for each tensor
    gaps: list[torch.Tensor]  # views of the padding after each tensor, if any


class Layout:
    """Where the variables of a bucket, or tensors of their shapes, lie in a flat tensor.

    Args:
        values: The values of the variables.
        in_blocks: Whether each begins with a new block, in a matrix of blocks.
    """

    def __init__(self, values: list[torch.Tensor], in_blocks: bool):
        self.in_blocks, self.shapes = in_blocks, [value.shape for value in values]
        self.sizes = [value.numel() for value in values]
        self.rooms = [size + (-size % BLOCK if in_blocks else 0) for size in self.sizes]
        self.size = sum(self.rooms)

    def pack(self, whole: torch.Tensor) -> Packed:
        """Return a flat tensor with its views."""
        pieces = list(zip(whole.split(self.rooms), self.sizes, self.shapes, strict=True))
        return Packed(
            whole.view(-1, BLOCK) if self.in_blocks else whole,
            [piece[:size].view(shape) for piece, size, shape in pieces],
            [piece[size:] for piece, size, _ in pieces if size < piece.numel()],
        )

    def pack_scales(self, slots: Sequence[Any]) -> Packed:
        """Return a column for slots with the scales of blocks, and its views."""
        counts = [room // BLOCK for room in self.rooms]
        whole = slots[0]._value.new_zeros(sum(counts))
        parts = zip(whole.split(counts), slots, strict=True)
        return Packed(whole.view(-1, 1), [part.view(slot.shape) for part, slot in parts], [])

    def pack_halves(self, like: torch.Tensor) -> list[Packed]:
        """Return words with the views of their halves, the low ones first: see `words.py`."""
        whole = like.new_zeros(self.size, dtype=torch.float32)
        both, halves = self.pack(whole).whole, whole.view(torch.bfloat16).view(-1, 2)
        return [dataclasses.replace(self.pack(half), whole=both) for half in halves.unbind(1)]


@dataclasses.dataclass
class Bucket:
    """Variables that one call of compiled code updates."""

    like: Update  # one of the updates, without its gradient
    variables: list[Any]
    positions: list[int]  # of the variables in a list of updates
    step: Callable[..., None]  # the rule over flat tensors, in place
    flat: list[torch.Tensor]  # for each slot or pair, the tensor with those of all variables
    watched: list[Any]  # variables and slots of Keras whose memory is that of flat tensors
    addresses: list[int]  # of their values
    # The owners of blocks, if a rule uses norms, means or numbers of a variable, or if there are
    # several learning rates. Memory is then a matrix of blocks, each of one variable.
    blocks: Blocks | None
    # Whether memory is such a matrix. With int8 slots it always is, for a scale of each block.
    in_blocks: bool
    # With int8 slots: the gaps, and values to fill them with. These repeat the last value of each
    # variable, which does not change the scale of its block.
    filling: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None
    # The gradients and the variables, or one variable that stays where it is.
    g: Packed | None = None
    x: Packed | None = None
    alone: torch.Tensor | None = None
    x_is_copy: bool = False  # whether variables are copied to `x` and back in each step

    def run(self, g: list[torch.Tensor], scalars: dict[tuple[str, int], Rates]) -> None:
        """Make a step with the gradients of its variables."""
        has_rates = self.blocks is not None and self.blocks.rates is not None
        known = _rates_of(self.like, scalars) if has_rates else self.like.scalars_in(scalars)
        self.step(*self._gather(g), known)
        if self.x is not None:
            x = self._values()
            if self.x_is_copy:
                copy_all(x, self.x.parts)
            else:
                # A backward pass that needs the old values must notice that they have changed.
                torch.autograd.graph.increment_version(x)

    def _values(self) -> list[torch.Tensor]:
        return [variable._value for variable in self.variables]

    def _gather(self, g: list[torch.Tensor]) -> tuple:
        """Return the arguments of the step: flat gradient, variable and slots, and the blocks."""
        if self.x is None or self.g is None:
            # Compiled code does not accept the strides of an expanded gradient, as that of a sum.
            shape = (-1, BLOCK) if self.in_blocks else (-1,)
            return g[0].contiguous().view(shape), self.alone, self.flat, self.blocks
        if self.g.gaps and self.filling is None:
            zero_all([*self.g.gaps, *self.x.gaps])  # gaps must not count in norms
        copy_all(self.g.parts, g)
        if self.x_is_copy:
            copy_all(self.x.parts, self._values())
        if self.filling is not None:
            copy_all(*self.filling)
        return self.g.whole, self.x.whole, self.flat, self.blocks

    def is_intact(self) -> bool:
        """Return whether all values are where they were moved: assigning a tensor replaces one."""
        return [variable._value.data_ptr() for variable in self.watched] == self.addresses


def run_fused(
    engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
) -> list[Update]:
    """Run the updates that can run in buckets; return the others."""
    fused = list(filter(_is_plain_update, updates))
    if not fused:
        return updates
    # Gradients in half precision come as they are.
    dtypes = [u.gradient.dtype for u in fused] if engine._state.has_half else ()
    key = ("plan", fused[0].kind.around, tuple([u.index for u in fused]), tuple(dtypes))
    plan = engine._fast.get(key)
    if plan is None or not all(map(Bucket.is_intact, plan)):
        plan = engine._fast[key] = _plan(engine, fused, scalars)
    for bucket in plan:
        bucket.run([fused[position].gradient for position in bucket.positions], scalars)
    if len(fused) == len(updates):
        return []
    done = {id(update) for update in fused}
    return [update for update in updates if id(update) not in done]


def _is_plain_update(update: Update) -> bool:
    """Return whether an update can run in a bucket."""
    return (
        update.kind.flat
        and can_be_compiled(update)
        and (not update.kind.stored or _can_be_blocks(update))
    )


def can_be_compiled(update: Update) -> bool:
    """Return whether compiled code can update the whole variable."""
    return (
        update.kind.mode == "dense"
        and type(update.gradient) is torch.Tensor  # compiled code does not check for subclasses
        and 0 not in update.like.shape
        and keeps_roundings(update)
    )


def keeps_roundings(update: Update) -> bool:
    """Return whether compiled code rounds to half precision where the formula does.

    A master copy is compared with its variable. Without one, hooks see the variable rounded.
    """
    if keeps_casts():
        return True
    is_rounded = keras.backend.standardize_dtype(update.variable.dtype) != update.like.dtype
    return not (MASTER in update.names or update.kind.around and is_rounded)


def _can_be_blocks(update: Update) -> bool:
    """Return whether blocks of flat memory are the blocks of int8 slots, too."""
    size, shape = math.prod(update.like.shape), update.like.shape
    for name, dtype, _ in update.kind.stored:
        by_row = dtype == "int8" and update.slots[update.names.index(name + SCALES)].ndim == 2
        if by_row and size // shape[0] % BLOCK:
            return False
    # The filling of gaps would count in norms.
    return update.kind.scope == "element" or size % BLOCK == 0 or not has_codes(update.kind.stored)


def _rates_of(update: Update, scalars: dict[tuple[str, int], Rates]) -> dict[str, Any]:
    """Return the scalars of a step for all learning rates of the rule of a variable."""
    return scalars[update.kind.dtype, update.kind.rule].together


def _plan(
    engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
) -> list[Bucket]:
    """Return the buckets for these updates."""
    # Either all small variables of a kind lie in blocks or none, so that they share compiled code.
    with_rates = {u.kind for u in updates if u.rate}
    alike: dict[tuple, list[list[int]]] = {}
    filled: dict[tuple, int] = {}
    for position, update in enumerate(updates):
        value = update.variable._value
        size, on_gpu = value.numel(), is_on_gpu(value)
        small = size <= (SMALL_ON_GPU if on_gpu else SMALL)
        in_blocks = has_codes(update.kind.stored)
        in_blocks |= small and (update.kind.scope != "element" or update.kind in with_rates)
        of_slots = update.names, numbers_of(update)
        dtypes = value.dtype, update.gradient.dtype
        key = (in_blocks, update.kind, of_slots, dtypes, value.device)
        lists = alike.setdefault(key, [[]])
        if small and filled.get(key, 0) + size <= (BUCKET_ON_GPU if on_gpu else BUCKET):
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
            # One variable needs no blocks.
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
    """Return the bucket of some updates, and move slots and, if possible, variables into it."""
    scratches: Scratches = engine._fast.setdefault(("scratches",), {})
    values = [u.variable._value for u in members]
    layout, kind = Layout(values, in_blocks), members[0].kind
    has_rates = in_blocks and len({u.rate for u in members}) > 1
    blocks = dimensions = None
    if has_rates or len(members) > 1 and in_blocks and kind.scope != "element":
        blocks = _blocks(members, layout, has_rates)
    if has_rates:  # compiled code does not check which scalars are vectors
        dimensions = tuple((name, value.ndim) for name, value in scalars.items())
    compiled, uncompiled = flat_step(engine, members[0], in_blocks, blocks, dimensions)
    # Sizes 0 and 1 would be compiled apart, which is not worth it.
    step = compiled if layout.size > 1 else uncompiled
    like = dataclasses.replace(members[0], gradient=None)
    variables = [u.variable for u in members]
    bucket = Bucket(like, variables, positions, step, [], [], [], blocks, in_blocks)
    with_gaps = _move_slots(bucket, members, layout)
    is_padded = layout.rooms != layout.sizes
    if len(members) > 1 or is_padded or not values[0].is_contiguous():
        bucket.g = layout.pack(_scratch(scratches, "g", members[0].gradient, layout.size))
        memory = _laid_end_to_end(values, layout.rooms)
        bucket.x_is_copy = memory is None
        if memory is None:
            memory = _scratch(scratches, "x", values[0], layout.size)
        else:
            bucket.watched += variables
        bucket.x = layout.pack(memory)
        with_gaps += [bucket.g, bucket.x]
    else:
        bucket.alone = layout.pack(values[0].detach().view(-1)).whole
        bucket.watched += variables
    if is_padded and has_codes(kind.stored):
        bucket.filling = _filling(with_gaps)
    bucket.addresses += [variable._value.data_ptr() for variable in bucket.watched]
    return bucket


def _move_slots(bucket: Bucket, members: list[Update], layout: Layout) -> list[Packed]:
    """Move the slots into a bucket; return the tensors that have gaps like those of variables."""
    like = members[0]
    scales, pairs, with_gaps = names_of_scales(like.kind.stored), words.pairs_of(like), []
    high_halves: dict[int, Packed] = {}  # by the places of the slots in the low ones
    slots_by_place = zip(*(update.slots for update in members), strict=True)
    each = zip(like.names, numbers_of(like), slots_by_place, strict=True)
    for place, (name, is_number, slots) in enumerate(each):
        bucket.watched += slots
        first = slots[0]._value
        if is_number and bucket.blocks is None:  # the variable is alone in its bucket
            bucket.flat.append(first.detach())
            continue
        if is_number:
            whole = first.new_zeros(len(slots))
            flat = Packed(whole, list(whole.unbind()), [])
        elif name in scales:
            flat = layout.pack_scales(slots)
        elif place in pairs:
            flat = high_halves[pairs[place]]
        elif place in pairs.values():
            flat, high_halves[place] = layout.pack_halves(first)
        else:
            flat = layout.pack(first.new_zeros(layout.size))
            with_gaps.append(flat)
        for slot, view in zip(slots, flat.parts, strict=True):
            view.copy_(slot._value.detach())
            slot._value = torch.nn.Parameter(view, requires_grad=False)
        if place not in pairs:
            bucket.flat.append(flat.whole)
    return with_gaps


def _blocks(members: list[Update], layout: Layout, has_rates: bool) -> Blocks:
    """Return the owners of blocks."""
    zeros = members[0].gradient.new_zeros(len(members), dtype=DTYPES[members[0].kind.dtype])
    counts = torch.tensor([room // BLOCK for room in layout.rooms])
    owner = torch.repeat_interleave(torch.arange(len(members)), counts).to(zeros.device)
    rates = torch.tensor([u.rate for u in members]).to(zeros.device)
    firsts = (counts.cumsum(0) - counts).to(zeros.device)
    return Blocks(
        owner, rates[owner] if has_rates else None, firsts, zeros.new_tensor(layout.sizes), zeros
    )


def _filling(packed: list[Packed]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gaps, and for each the number before it, expanded to its shape."""
    gaps, lasts = [], []
    for one in packed:
        flat = one.whole.view(-1)
        for gap in one.gaps:
            gaps.append(gap)
            place = gap.storage_offset() - flat.storage_offset() - 1
            lasts.append(flat[place : place + 1].expand(gap.shape))
    return gaps, lasts


def _laid_end_to_end(values: list[torch.Tensor], rooms: list[int]) -> torch.Tensor | None:
    """Move variables end to end, and return all their memory; None if they cannot move."""
    if not all(v.is_contiguous() and type(v.data) is torch.Tensor for v in values):
        return None
    # An earlier optimizer may have moved them.
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
    """Return whether a variable may move, as nothing else uses its memory."""
    storage = value.untyped_storage()
    # Other tensors, NumPy arrays or processes may use it.
    shared = value.device.type == "cpu" and value.is_shared()
    return users_of(storage) == OWN_USERS and not shared and storage.nbytes() == value.nbytes


def _scratch(scratches: Scratches, use: str, like: torch.Tensor, size: int) -> torch.Tensor:
    """Return memory for a call of compiled code, the same in all calls."""
    key = (use, like.dtype, like.device)
    if key not in scratches or scratches[key].numel() < size:
        scratches[key] = torch.empty(size, dtype=like.dtype, device=like.device)
    return scratches[key][:size]
