"""One compiled step of an elementwise rule, in place, over flat tensors of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from keras_tfopt.engine.backends.torch import compile as torch_compile
from keras_tfopt.engine.construction import sharing_key
from keras_tfopt.engine.hyperparameters import Over
from keras_tfopt.engine.state import BLOCK, has_codes

if TYPE_CHECKING:
    from keras_tfopt.engine.moving import Kind, Update

CHUNK = 1 << 17  # elements that stay in cache while an uncompiled rule makes its passes
PART = 1 << 19  # the same where compiled code makes two passes

_compiled: dict[tuple, tuple[Callable, Callable]] = {}


class Blocks(NamedTuple):
    """Which variables the rows of a matrix belong to; each has whole rows.

    Attributes:
        owner: Of each row, the number of its variable.
        rates: Of each row, the number of its learning rate; None where there is one.
        firsts: Of each variable, its first row.
        sizes: Of each variable, how many elements it has.
        zeros: A zero for each variable.
    """

    owner: torch.Tensor
    rates: torch.Tensor | None
    firsts: torch.Tensor
    sizes: torch.Tensor
    zeros: torch.Tensor

    def column(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the number of each row's variable, to broadcast against rows."""
        return numbers[self.owner].unsqueeze(1)

    def numbers(self, column: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the variables again, from such a column."""
        return column.expand(self.owner.shape[0], 1)[self.firsts, 0]

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over each variable."""
        return self.zeros.index_add(0, self.owner, torch.sum(values, 1))


def numbers_of(update: Update) -> tuple[bool, ...]:
    """Return of each slot whether it is one number for a variable of several."""
    return tuple(bool(update.like.shape) and not slot.shape for slot in update.slots)


def flat_step(
    engine: Any, update: Update, in_blocks: bool, dimensions: tuple[tuple[str, int], ...] | None
) -> tuple[Callable, Callable]:
    """Return the in-place step over flat tensors, compiled where possible, and in pieces.

    Args:
        engine: The optimizer.
        update: One of those that are run.
        in_blocks: Whether memory is a matrix of blocks.
        dimensions: Scalars, and of each whether it is a vector with a number for each learning
            rate; None where there is one learning rate.
    """
    value, kind, names = update.variable._value, update.kind, update.names
    numbers = numbers_of(update)
    key = ("step", kind, names, numbers, value.dtype, value.device.type, in_blocks, dimensions)
    if key not in engine._fast:
        rule, changing = engine.rule_to_share(kind.rule)
        shared = (*sharing_key(engine, rule, changing), *key)
        if shared not in _compiled:
            name = f"{type(rule).__name__}_step"
            has_rates = dimensions is not None
            _compiled[shared] = _compile(update.call, name, in_blocks, has_rates, kind, numbers)
        engine._fast[key] = _compiled[shared]
    return engine._fast[key]


def _compile(
    call: Callable[..., tuple[Any, list[Any]]],
    name: str,
    in_blocks: bool,
    has_rates: bool,
    kind: Kind,
    numbers: tuple[bool, ...],
) -> tuple[Callable, Callable]:
    scope = kind.scope

    def step(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
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

        if has_rates:  # a column for each scalar that is a vector
            rates = blocks.rates
            scalars = {n: v[rates].unsqueeze(1) if v.ndim else v for n, v in scalars.items()}
        seen = slots
        if blocks is not None and any(numbers):
            each = zip(slots, numbers, strict=True)
            seen = [blocks.column(slot) if is_number else slot for slot, is_number in each]
        y, changed = call(g, x, seen, scalars, None, Over(norm, total, mean))
        if y is not x:
            x.copy_(y)
        for slot, new, is_number in zip(slots, changed, numbers, strict=True):
            if new is not None and is_number and blocks is not None:
                slot.copy_(blocks.numbers(new))
            elif new is not None:
                slot.copy_(new)

    def uncompiled(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
        if scope != "element" or blocks is not None:
            step(g, x, slots, blocks, scalars)
            return
        length = CHUNK // BLOCK if g.ndim == 2 else CHUNK
        parts = [tensor.split(length) for tensor in (g, x, *slots)]
        for g_part, x_part, *slot_parts in zip(*parts, strict=True):
            step(g_part, x_part, slot_parts, None, scalars)

    def like_many(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> tuple:
        like = [
            tensor.new_ones(5000, *tensor.shape[1:]) if tensor.ndim else tensor.clone()
            for tensor in (g, x, *slots)
        ]
        return like[0], like[1], like[2:], None, scalars

    def like_many_blocks(
        g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]
    ) -> tuple:
        like = [tensor.new_ones(20, *tensor.shape[1:]) for tensor in (g, x, *slots)]
        rates = None if blocks.rates is None else blocks.rates.new_zeros(20)
        blocks = Blocks(blocks.owner.new_zeros(20), rates, *blocks[2:])
        return like[0], like[1], like[2:], blocks, scalars

    def alike(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> tuple:
        return g.clone(), x.clone(), [slot.clone() for slot in slots], blocks, scalars

    sums_blocks = in_blocks and scope != "element"  # which depends on their number
    with_owners = in_blocks and has_rates
    examples = alike if sums_blocks else like_many_blocks if with_owners else like_many
    # Codes take more arithmetic than memory, and lie in the cache between passes.
    with_codes = has_codes(kind.stored)
    recomputes = scope != "element" and not with_codes
    has_bits = bool(kind.stored) and not with_codes
    compiled = torch_compile.Compiled(
        step, name, uncompiled, examples, sums_blocks, recomputes, has_bits, with_codes
    )
    if not in_blocks or scope != "element" or has_rates:
        return compiled, uncompiled

    def in_parts(g: Any, x: Any, slots: list, blocks: Any, scalars: dict[str, Any]) -> None:
        # A scale is known after a pass over its block. What the second pass needs of the first one
        # lies in memory, which stays in the cache if there is little of it.
        parts = [tensor.split(PART // BLOCK) for tensor in (g, x, *slots)]
        for g_part, x_part, *slot_parts in zip(*parts, strict=True):
            compiled(g_part, x_part, slot_parts, None, scalars)

    return in_parts, uncompiled


def _sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of a vector, in blocks first, which is fast in compiled code and exact."""
    whole = values.shape[0] // BLOCK * BLOCK
    sums = torch.sum(values[:whole].view(-1, BLOCK), 1)
    return torch.sum(sums) + torch.sum(values[whole:])
