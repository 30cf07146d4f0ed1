"""Slots in fewer bytes: what a rule computes in float32, kept as bfloat16 or as codes of 8 bits.

`bind_rule` decodes what is stored before the rule runs and encodes what the rule returns, so rules
know nothing of it. All functions are pure and compile on every backend.

int8: the values of a block are divided by the largest magnitude among them, its scale. Each becomes
the number of the nearest value in a table of 256 values. The table is that of Dettmers et al.,
"8-bit Optimizers via Block-wise Quantization" (2022). In each decade from 1e-6 to 1, the signed
table has 2**i values of either sign, i = 0 to 6, evenly spaced; the unsigned one has twice as many.
Beside them are 0 and 1. So a value in the decade below the scale comes back within 0.7 % of the
scale (unsigned: 0.35 %), and in each decade below within twice that part of its own decade.

The table is never looked up. The number of a code is a continuous function of the value, which is
a straight line in each decade: the line of the last decade, less a multiple of what the value lacks
at the end of each other one. Decoding is the same the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state import BLOCK, DITHER, SCALES, Stored, names_of_scales

LEAST = 4096
"""A variable of fewer values keeps its slots in float32."""
LEAST_ROW = 16
"""So does a table whose rows have fewer values: each row has a scale of its own."""
DTYPES = ("float32", "bfloat16", "int8")

_DECADES = range(7)
# Of each decade, the line from values to numbers of codes, counted from zero as in the signed
# table: in the decade they run from 2**i to 2**(i + 1).
_SLOPES = [10.0 ** (6 - i) * 2**i / 0.9 for i in _DECADES]
_STARTS = [2**i * (1 - 0.1 / 0.9) for i in _DECADES]
# Where a line goes over into the next one, and how much less or more that rises.
_TURNS = [(10.0 ** (i - 6), _SLOPES[i] - _SLOPES[i + 1]) for i in _DECADES[:-1]]
_TURNS_BACK = [(2.0**i, 1 / _SLOPES[i] - 1 / _SLOPES[i - 1]) for i in _DECADES[1:]]
_ZERO = 127  # the code of 0 in the signed table
_LEAST_SCALE = 2.0**-126  # of which the inverse is finite


# ---- Shapes ------------------------------------------------------------------------------------


def scales_shape(shape: Sequence[int], by_row: bool) -> tuple[int, ...]:
    """Return the shape of the scales: of blocks of all values, or of blocks in each row."""
    if by_row:
        return shape[0], -(-math.prod(shape[1:]) // BLOCK)
    return (-(-math.prod(shape) // BLOCK),)


def _in_blocks(x: Any, scales: tuple) -> Any:
    """Return the values with the blocks in the last place, filled up with zeros."""
    if len(scales) == 1:
        x = ops.reshape(x, (-1,))
        padding = -x.shape[0] % BLOCK
        x = ops.pad(x, [(0, padding)]) if padding else x
        return ops.reshape(x, (-1, BLOCK))
    if scales[1] == 1:
        return x if len(x.shape) == 2 else ops.reshape(x, (-1, math.prod(x.shape[1:])))
    x = ops.reshape(x, (-1, math.prod(x.shape[1:])))
    padding = -x.shape[1] % BLOCK
    x = ops.pad(x, [(0, 0), (0, padding)]) if padding else x
    return ops.reshape(x, (-1, scales[1], BLOCK))


def _from_blocks(blocks: Any, like: Any, scales: tuple) -> Any:
    """Return the values in the shape of `like`, without what blocks were filled up with."""
    if len(blocks.shape) == len(like.shape) == 2 and scales[-1] == 1:
        return blocks
    shape = tuple(like.shape)
    if len(scales) == 1:
        size = math.prod(shape)
        flat = ops.reshape(blocks, (-1,))
        return ops.reshape(flat[:size] if size % BLOCK else flat, shape)
    size = math.prod(shape[1:])
    if scales[1] > 1 and size % BLOCK:
        blocks = ops.reshape(blocks, (-1, scales[1] * BLOCK))[:, :size]
    return ops.reshape(blocks, (-1, *shape[1:]))


# ---- 8 bits ------------------------------------------------------------------------------------


def encode(x: Any, scales: tuple, signed: bool) -> tuple[Any, Any]:
    """Return codes in the shape of `x`, as uint8, and scales.

    Each value becomes the nearest one of the table, within a rounding of float32, with two
    exceptions. In the unsigned table, no value above 0 becomes 0: a second moment of 0 beside a
    first moment that is not would make giant steps. In the signed one, values below 2.8e-7 of the
    scale become 0, where the middle between 0 and the next value is 2.75e-7.

    Of a block with NaN or infinity, the scale is NaN. Of one whose largest magnitude is no normal
    number of float32, it is 0.

    Args:
        x: Values in float32.
        scales: Shape of the scales, of which the first number may be any.
        signed: Whether the table has negative values; where not, negative values become 0.
    """
    blocks = _in_blocks(x, scales)
    size = ops.abs(blocks)
    # Where XLA computes maxima fast, they do not see NaN.
    seen = ops.where(size < math.inf, size, ops.full_like(size, math.inf))
    scale = ops.amax(seen, axis=-1, keepdims=True)
    none = ops.zeros_like(scale)
    scale = ops.where(scale < math.inf, scale, none + math.nan)
    scale = ops.where(scale < _LEAST_SCALE, none, scale)
    part = size * (1 / ops.where(scale > 0, scale, none + math.inf))
    number = part * _SLOPES[-1] + _STARTS[-1]
    for end, change in _TURNS:
        number = number - change * backend.relu(end - part)
    top = 128 if signed else 256
    number = number if signed else 2 * number
    code = ops.cast(number, "int32")
    # Midway between two decades, where spacing changes, is at a fifth of the first space. Its code
    # is a power of 2, which has no bit in common with the code before it; others have.
    before = ops.cast(number - 0.2, "int32")
    code = ops.where(ops.equal(code & before, 0), before, code)
    code = ops.where(number < top - 0.25, code, ops.full_like(code, top))
    zero = ops.zeros_like(code)
    if signed:
        code = ops.where(blocks < 0, ops.maximum(_ZERO - code, zero), _ZERO + code)
    else:
        code = ops.where(blocks > 0, ops.maximum(code - 1, zero + 1), zero)
    codes = _from_blocks(ops.cast(code, "uint8"), x, scales)
    shape = (-1,) if len(scales) == 1 else (-1, scales[1])
    return codes, ops.reshape(scale, shape)


def decode(codes: Any, scales: Any, signed: bool) -> Any:
    """Return the values of codes, in float32."""
    blocks = ops.cast(_in_blocks(codes, tuple(scales.shape)), "float32")
    number = ops.abs(blocks - _ZERO) if signed else blocks * 0.5
    middle = number + (0.5 if signed else 0.75)
    value = backend.relu(middle - _STARTS[0]) * (1 / _SLOPES[0])  # 0 for the code of 0
    for start, change in _TURNS_BACK:
        value = value + change * backend.relu(middle - start)
    value = backend.lesser(value, ops.ones_like(value))  # the line is above 1 for the code of 1
    value = ops.where(blocks < _ZERO, -value, value) if signed else value
    scale = scales if len(value.shape) == len(scales.shape) else ops.expand_dims(scales, -1)
    return _from_blocks(value * scale, codes, tuple(scales.shape))


# ---- bfloat16 ----------------------------------------------------------------------------------


def rounded(x: Any, dither: Mapping[str, Any], seed: int) -> Any:
    """Return float32 values as bfloat16, rounded up or down at random, right in the mean.

    A change below half of the last place, as that of a second moment with beta_2=0.999, would be
    lost in each step if values were rounded to the nearest. The chance decides by the 16 bits that
    are kept, the step and the slot: by no generator, no layout and no backend. The bits that are
    rounded off have no part in it, or the last of them, in which compilers differ, would decide.

    Args:
        x: Values in float32.
        dither: What `dither_of` returns for the step, in any data type.
        seed: A number for the slot, by `seed_of`.
    """
    bits = backend.bits_of(x)
    start, factor = (ops.cast(dither[DITHER + name], "int32") for name in ("start", "factor"))
    # In each step another product modulo 2**16, so that near values have far remainders.
    product = ops.right_shift(bits, 16) * ((factor ^ seed) | 1)
    up_or_down = backend.from_bits((bits + ((product ^ (start ^ seed)) & 0xFFFF)) & -0x10000)
    return ops.cast(ops.where(ops.equal(x, x), up_or_down, x), "bfloat16")


# ---- All slots of a variable -------------------------------------------------------------------


def names_without_scales(names: Sequence[str], stored: Sequence[Stored]) -> list[str]:
    """Return the names of the slots that a rule knows."""
    scales = names_of_scales(stored)
    return [name for name in names if name not in scales]


def in_row_blocks(stored: Sequence[Stored], slots: Mapping[str, Any]) -> bool:
    """Return whether no slot has blocks of values from several rows."""
    return all(len(slots[name].shape) == 2 for name in names_of_scales(stored))


def read_slots(
    names: Sequence[str], slots: Sequence[Any], stored: Sequence[Stored], dtype: str
) -> list[Any]:
    """Return the slots that a rule knows, in the dtype of its arithmetic."""
    ways = {one.slot: one for one in stored}
    found, read = dict(zip(names, slots, strict=True)), []
    for name in names_without_scales(names, stored):
        value, way = found[name], ways.get(name)
        if way is not None and way.dtype == "int8":
            value = decode(value, found[name + SCALES], way.signed)
        elif way is not None:
            value = ops.cast(value, dtype)
        read.append(value)
    return read


def written_slots(
    new: Mapping[str, Any],
    old: Mapping[str, Any],
    stored: Sequence[Stored],
    seeds: Mapping[str, int],
    dither: Mapping[str, Any],
) -> dict[str, Any]:
    """Return slots as they are stored, with their scales, from those that a rule has returned.

    Args:
        new: New values by name. Slots that are missing stay as they are.
        old: What is stored now, by name.
        stored: How.
        seeds: Of each slot, its number by `seed_of`.
        dither: Scalars of the step, among them those of `dither_of` if a slot is bfloat16.
    """
    written = dict(new)
    for name, dtype, signed in stored:
        value = written.get(name)
        if value is None:
            continue
        if dtype == "int8":
            scales = tuple(old[name + SCALES].shape)
            written[name], written[name + SCALES] = encode(value, scales, signed)
        else:
            written[name] = rounded(value, dither, seeds[name])
    return written
