"""Compile the step of a rule over flat tensors of any length, in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from keras_tfopt.engine.arguments.hyperparameters import REFUSED, Over
from keras_tfopt.engine.backends.torch import compile as torch_compile
from keras_tfopt.engine.backends.torch import words
from keras_tfopt.engine.backends.torch.values import is_on_gpu, write_all
from keras_tfopt.engine.state.state import BLOCK, has_codes
from keras_tfopt.engine.step.shared_code import Shared

if TYPE_CHECKING:
    from keras_tfopt.engine.step.kinds import Kind
    from keras_tfopt.engine.step.moving import Update

CHUNK = 1 << 17  # elements that stay in the cache for all passes of an uncompiled rule
PART = 1 << 19  # elements that stay in the cache for two passes of compiled code

_compiled = Shared()


class Blocks(NamedTuple):
    """The variables in a matrix of blocks. A block is a row, and belongs to one variable.

    Attributes:
        owner: For each block, the index of its variable.
        rates: For each block, the index of its learning rate; None if there is only one.
        firsts: For each variable, the index of its first block.
        sizes: For each variable, the number of its elements.
        zeros: For each variable, a zero.
    """

    owner: torch.Tensor
    rates: torch.Tensor | None
    firsts: torch.Tensor
    sizes: torch.Tensor
    zeros: torch.Tensor

    def column(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a column with a number for each block, from a number for each variable."""
        return numbers[self.owner].unsqueeze(1)

    def numbers(self, column: torch.Tensor) -> torch.Tensor:
        """Return a number for each variable, from such a column."""
        return column.expand(self.owner.shape[0], 1)[self.firsts, 0]

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of each variable's elements."""
        return self.zeros.index_add(0, self.owner, torch.sum(values, 1))


def numbers_of(update: Update) -> tuple[bool, ...]:
    """Return for each slot whether it is one number, for a variable that is no scalar."""
    return tuple(bool(update.like.shape) and not slot.shape for slot in update.slots)


def flat_step(
    engine: Any,
    update: Update,
    in_blocks: bool = False,
    blocks: Blocks | None = None,
    dimensions: tuple[tuple[str, int], ...] | None = None,
) -> tuple[Callable, Callable]:
    """Return two functions for a step over flat tensors in place: compiled, and uncompiled.

    Args:
        engine: The optimizer.
        update: One of the updates.
        in_blocks: Whether memory is a matrix of blocks.
        blocks: The owners of blocks, if several variables have some.
        dimensions: The rank of each scalar, which is 1 if it has a number for each learning rate.
            None if there is one learning rate.

    Slots are given as tensors in the order of their names, except that the second of two slots that
    share words is left out.
    """
    value, kind, names = update.variable._value, update.kind, update.names
    numbers = numbers_of(update)
    dtypes = value.dtype, update.gradient.dtype if kind.mode == "dense" else None
    memory = *dtypes, value.device.type, in_blocks, blocks is not None
    key = ("step", kind, names, numbers, memory, dimensions)
    if key not in engine._fast:
        rule, changing = engine.rule_to_share(kind.rule)
        has_rates = dimensions is not None
        on_gpu = is_on_gpu(value)
        make = functools.partial(
            _compile,
            update.call,
            in_blocks,
            has_rates,
            kind,
            numbers,
            words.pairs_of(update),
            on_gpu,
        )
        engine._fast[key] = _compiled.find(engine, rule, changing, key, make)
    return engine._fast[key]


def _compile(
    call: Callable[..., tuple[Any, list[Any]]],
    in_blocks: bool,
    has_rates: bool,
    kind: Kind,
    numbers: tuple[bool, ...],
    pairs: words.Pairs,
    on_gpu: bool,
) -> tuple[Callable, Callable]:
    scope = kind.scope
    # From here on for each tensor, of which some have two slots.
    numbers = tuple(one for place, one in enumerate(numbers) if place not in pairs)
    with_codes = has_codes(kind.stored)

    def step(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
        if has_rates:  # scalars that are vectors become columns
            rates = blocks.rates
            scalars = {n: v[rates].unsqueeze(1) if v.ndim else v for n, v in scalars.items()}
        seen = slots
        if with_codes:
            seen = [slot[1] if isinstance(slot, tuple) else slot for slot in slots]
            slots = _kept(slots)
        if blocks is not None and any(numbers):
            each = zip(slots, numbers, strict=True)
            seen = [blocks.column(slot) if is_number else slot for slot, is_number in each]
        seen = words.read(seen, pairs) if pairs else seen
        over = REFUSED if scope == "element" else _over(blocks)
        y, changed = call(g, x, seen, scalars, None, over, narrow=not pairs)
        changed = words.written(seen, changed, pairs) if pairs else changed
        if blocks is not None and any(numbers):
            changed = [
                blocks.numbers(new) if is_number and new is not None else new
                for new, is_number in zip(changed, numbers, strict=True)
            ]
        write_all([x, *slots], [y, *changed])

    def uncompiled(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
        if scope != "element" or blocks is not None or on_gpu or g.numel() <= CHUNK:
            step(g, x, slots, blocks, scalars)
            return
        _run_in_parts(step, CHUNK // BLOCK if g.ndim == 2 else CHUNK, g, x, _kept(slots), scalars)

    # Codes take more arithmetic than memory, and are in the cache between passes.
    compiled = torch_compile.Compiled(
        step,
        _examples,
        uncompiled,
        recomputes=scope != "element" and not with_codes,
        has_bits=bool(kind.stored) and not with_codes,
        contracts=with_codes,
    )
    if not in_blocks or scope != "element" or has_rates or on_gpu:
        return compiled, uncompiled

    def in_parts(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
        # Encoding takes two passes, as a scale is known after a pass over its block. Results of the
        # first pass stay in the cache if there are few.
        _run_in_parts(compiled, PART // BLOCK, g, x, slots, scalars, casts=with_codes)

    return in_parts, uncompiled


def _over(blocks: Blocks | None) -> Over:
    """Return the functions of one variable, or of those that own blocks."""

    def norm(values: Any) -> Any:
        squares = values * values
        if blocks is None:
            return torch.sqrt(_sum(squares))
        return blocks.column(torch.sqrt(blocks.sums(squares)))

    def total(values: Any) -> Any:
        return _sum(values) if blocks is None else blocks.column(blocks.sums(values))

    def mean(values: Any) -> Any:
        size = values.numel() if blocks is None else blocks.column(blocks.sizes)
        return total(values) / size

    return Over(norm, total, mean)


def _kept(slots: list) -> list:
    """Return slots without the float32 copies of codes, with which codes are in pairs."""
    return [slot[0] if isinstance(slot, tuple) else slot for slot in slots]


def _run_in_parts(
    step: Callable[..., None],
    length: int,
    g: Any,
    x: Any,
    slots: list,
    scalars: dict[str, Any],
    casts: bool = False,
) -> None:
    """Run a step over parts of tensors, one after the other.

    Args:
        step: The step.
        length: How much of the first dimension is in a part.
        g: The gradient.
        x: The variable.
        slots: The slots.
        scalars: The scalars of the step.
        casts: Whether the step may get slots with codes as pairs, of codes and the same as float32.
    """
    parts = [[*tensor.split(length)] for tensor in (g, x, *slots)]
    # With vectors of 256 bits, compiled code takes long to read integers of 8 bits.
    if casts and torch.backends.cpu.get_cpu_capability() == "AVX2":
        for n, slot in enumerate(slots):
            if slot.dtype is torch.uint8:
                memory = torch.empty_like(slot[:length], dtype=torch.float32)
                parts[2 + n] = [(part, memory[: len(part)]) for part in parts[2 + n]]
    for g_part, x_part, *slot_parts in zip(*parts, strict=True):
        for part in slot_parts:
            if isinstance(part, tuple):
                part[1].copy_(part[0])
        step(g_part, x_part, slot_parts, None, scalars)


def _examples(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> tuple:
    """Return arguments to compile with: sizes that may differ between calls differ here."""
    # The compiler chooses by them how threads of a GPU share the elements.
    many = is_on_gpu(g) and g.ndim == 1
    elements, variables, rates = 1 << 22 if many else 5000, 30, 11

    def like(tensor: torch.Tensor) -> torch.Tensor:
        of_variables = blocks is not None and tensor.ndim == 1
        size = variables if of_variables else elements
        return tensor.new_empty(size, *tensor.shape[1:]) if tensor.ndim else tensor

    if blocks is not None:
        blocks = Blocks(
            owner=blocks.owner.new_empty(elements),
            rates=None if blocks.rates is None else blocks.rates.new_empty(elements),
            **{n: getattr(blocks, n).new_empty(variables) for n in ("firsts", "sizes", "zeros")},
        )
    scalars = {n: v.new_empty(rates) if v.ndim else v for n, v in scalars.items()}
    slots = [tuple(map(like, slot)) if isinstance(slot, tuple) else like(slot) for slot in slots]
    return like(g), like(x), slots, blocks, scalars


def _sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of all numbers.

    On a processor, it is that of blocks, which is fast in compiled code and more exact.
    """
    if is_on_gpu(values):
        return torch.sum(values)
    if values.ndim == 2:
        return torch.sum(torch.sum(values, 1))
    whole = values.shape[0] // BLOCK * BLOCK
    sums = torch.sum(values[:whole].view(-1, BLOCK), 1)
    return torch.sum(sums) + torch.sum(values[whole:])
