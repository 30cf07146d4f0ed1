"""Numbers that decide, without a generator, how bfloat16 slots are rounded: see `rounded`."""

from __future__ import annotations

import zlib
from typing import Any

from keras import ops

from keras_tfopt.engine.state.state import DITHER


def _mixed(x: Any) -> Any:
    """Return the hash of integers from 0 to 2**31 - 1, in that range, without overflow."""
    for factor in (28657, 31981, 25717):
        x = ((x & 0xFFFF) * factor) ^ ops.right_shift(x, 16)
    return x


def seed_of(slot: str) -> int:
    """Return a number of 15 bits for a slot, so that slots with equal values round differently."""
    return zlib.crc32(slot.encode()) & 0x7FFF


def dither_of(step: Any) -> dict[str, Any]:
    """Return two integers of at most 16 bits for the rounding of a step, by names of scalars.

    They are computed once for a step. Compiled code would compute them again for each vector.
    """
    start = _mixed(_mixed(ops.cast(step, "int32") & 0x7FFFFFFF) ^ 0x2545F491)
    factor = ops.right_shift(_mixed(start ^ 0x1B873593), 8)
    return {DITHER + "start": start & 0xFFFF, DITHER + "factor": factor & 0x7FFF}
