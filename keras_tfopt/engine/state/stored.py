"""Encode slots as bfloat16 or codes of 8 bits, and decode them as float32.

`bind_rule` decodes slots before it calls a rule, and encodes what the rule returns. So rules need
no code for this. All functions are pure and compile on every backend.

With int8, the values of a block are divided by its scale, so that their extreme becomes an end of
a table of 256 numbers. The code of a value is the index of the nearest number in the table. The
table is that of Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022). It has 0,
1, and numbers from seven decades, of which the last ends at 1. In decade i = 0 to 6, the signed
table has 2**i evenly spaced numbers of each sign; the unsigned table has twice as many. So the
error of a value in the decade below the scale is at most 0.7 % of the scale (unsigned: 0.35 %). In
each lower decade, the error relative to its end doubles.

The table is not stored. The index of a number is a continuous function that is linear in each
decade, and less steep in each than in the one before. So it is the least of seven lines. Decoding
computes the inverse, which is the greatest of seven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.state import (
    BLOCK,
    DITHER,
    SCALES,
    Stored,
    names_of_scales,
    names_without_scales,
)

LEAST = 4096
"""A variable of fewer values keeps its slots in float32."""
LEAST_ROW = 16
"""A table with fewer values in a row does not use int8, as each row has a scale of its own."""
DTYPES = ("float32", "bfloat16", "int8")

# For each of seven decades, the slope and start of the line from values to indices, which run from
# 2**i to 2**(i + 1) there. Indices count from that of 0, as in the signed table. The unsigned table
# has twice as many.
_LINES = [(10.0 ** (6 - i) * 2**i / 0.9, 2**i * (1 - 0.1 / 0.9)) for i in range(7)]
_LINES_BACK = [(1 / slope, -start / slope) for slope, start in _LINES]
_ROUNDING = 2.0**23  # float32 numbers from here to 2**24 are whole
_BITS = 0x4B000000  # the bits of this number
_EXPONENT = 0x7F800000  # the bits of a float32 number that make a power of 2
_ZERO = 127  # the code of 0 in the signed table
SIGNED_END = 0.99296875
"""The magnitude of the least number in the signed table, whose greatest is 1."""
_LEAST_SCALE = 2.0**-126  # the least normal number of float32; its inverse is finite


# ---- Shapes ------------------------------------------------------------------------------------


def scales_shape(shape: Sequence[int], by_row: bool) -> tuple[int, ...]:
    """Return the shape of the scales: for blocks of all values, or for blocks within rows."""
    if by_row:
        return shape[0], -(-math.prod(shape[1:]) // BLOCK)
    return (-(-math.prod(shape) // BLOCK),)


def _in_blocks(x: Any, scales: tuple) -> Any:
    """Return values with a last axis for blocks, padded with zeros."""
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
    """Return the values of blocks in the shape of `like`, without padding."""
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

    The code is that of the nearest number in the table, up to rounding in float32, with two
    exceptions. In the unsigned table, no value above 0 becomes 0: a second moment of 0 would make
    giant steps if the first moment is not 0. In the signed table, magnitudes below 2.8e-7 of the
    scale become 0; half the smallest number of the table would be 2.75e-7.

    The scale of a block is its greatest value; in the signed table also the magnitude of its least
    value over `SIGNED_END`, if that is more. So the extreme is restored, and a block that is
    encoded again and again does not shrink. If a block has NaN or infinity, its scale is NaN. It is
    0 if no magnitude in the block is a normal number of float32.

    Args:
        x: Values in float32.
        scales: Shape of the scales; its first number is not used.
        signed: Whether the table has negative numbers. If not, negative values become 0.
    """
    blocks = _in_blocks(x, scales)
    size = ops.abs(blocks)
    reach = ops.where(blocks < 0, size * (1 / SIGNED_END), size) if signed else size
    # Fast maxima of XLA ignore NaN.
    seen = ops.where(reach < math.inf, reach, ops.full_like(reach, math.inf))
    scale = ops.amax(seen, axis=-1, keepdims=True)
    none = ops.zeros_like(scale)
    scale = ops.where(scale < math.inf, scale, none + math.nan)
    scale = ops.where(scale < _LEAST_SCALE, none, scale)
    part = size * (1 / ops.where(scale > 0, scale, none + math.inf))
    count, top = (1, 128) if signed else (2, 255)
    lines = [(count * slope, count * start) for slope, start in reversed(_LINES)]
    number = backend.least_of_lines(part, lines)
    # Spacing changes between the last number of a decade and the first one of the next, so that
    # their midpoint is 0.2 beyond a power of 2. Such indices become less than that power.
    power = backend.from_bits(backend.bits_of(number) & _EXPONENT)
    number = number - 0.25 * backend.relu(power + 1 - number)
    # Round down. In the unsigned table, indices of the first decade begin with 2, and codes with 1.
    code = backend.bits_of(number + (_ROUNDING - count + 0.5)) - _BITS
    # The last number of the table is 1, half a space above the one before.
    code = ops.where(number < 128 * count - 0.25, code, ops.full_like(code, top))
    zero = ops.zeros_like(code)
    if signed:
        code = ops.where(blocks < 0, ops.maximum(_ZERO - code, zero), _ZERO + code)
    else:
        code = ops.where(blocks > 0, ops.maximum(code, zero + 1), zero)
    codes = _from_blocks(backend.as_bytes(code), x, scales)
    shape = (-1,) if len(scales) == 1 else (-1, scales[1])
    return codes, ops.reshape(scale, shape)


def decode(codes: Any, scales: Any, signed: bool) -> Any:
    """Return the values of codes in float32."""
    blocks = ops.cast(_in_blocks(codes, tuple(scales.shape)), "float32")
    number = ops.abs(blocks - _ZERO) if signed else blocks * 0.5
    middle = 0.5 if signed else 0.75
    lines = [(slope, slope * middle + start) for slope, start in _LINES_BACK]
    value = backend.greatest_of_lines(number, [(0.0, 0.0), *lines])  # 0 for the code of 0
    value = backend.lesser(value, ops.ones_like(value))  # the line is above 1 for the code of 1
    value = ops.where(blocks < _ZERO, -value, value) if signed else value
    scale = scales if len(value.shape) == len(scales.shape) else ops.expand_dims(scales, -1)
    return _from_blocks(value * scale, codes, tuple(scales.shape))


# ---- bfloat16 ----------------------------------------------------------------------------------


def rounded(x: Any, dither: Mapping[str, Any], seed: int) -> Any:
    """Return numbers that bfloat16 has, as float32, rounded up or down at random.

    With rounding to the nearest, changes below half of the last place would be lost in each step,
    such as those of a second moment with beta_2=0.999. The random bits are a hash of the 16 bits
    that are kept, the step and the slot. So they are equal on all backends and for all layouts of
    the values. The bits that are rounded off are not hashed: compilers differ in the last of them.

    Args:
        x: Values in float32.
        dither: The result of `dither_of` for the step, in any data type.
        seed: The result of `seed_of` for the slot.
    """
    bits = backend.bits_of(x)
    start, factor = (ops.cast(dither[DITHER + name], "int32") for name in ("start", "factor"))
    # The factor differs between steps, and is odd: the product hashes the kept bits modulo 2**16.
    product = ops.right_shift(bits, 16) * ((factor ^ seed) | 1)
    up_or_down = backend.from_bits((bits + ((product ^ (start ^ seed)) & 0xFFFF)) & -0x10000)
    return ops.where(ops.equal(x, x), up_or_down, x)


# ---- All slots of a variable -------------------------------------------------------------------


def in_row_blocks(stored: Sequence[Stored], slots: Mapping[str, Any]) -> bool:
    """Return whether all blocks of codes are within rows."""
    return all(len(slots[name].shape) == 2 for name in names_of_scales(stored))


def read_slots(
    names: Sequence[str], slots: Sequence[Any], stored: Sequence[Stored], dtype: str
) -> list[Any]:
    """Return a rule's own slots, decoded, in the dtype of its arithmetic."""
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
    narrow: bool = True,
) -> dict[str, Any]:
    """Encode the slots that a rule has returned; return these with their scales.

    Args:
        new: New values by name. Slots that are missing stay as they are.
        old: The slots and scales so far, by name.
        stored: How slots are stored.
        seeds: The result of `seed_of` for each slot.
        dither: Scalars of the step, with those of `dither_of` if a slot is bfloat16.
        narrow: Whether numbers rounded to bfloat16 are returned as such, not as float32.
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
            value = rounded(value, dither, seeds[name])
            written[name] = ops.cast(value, "bfloat16") if narrow else value
    return written
