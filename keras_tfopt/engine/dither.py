"""What decides whether a value is rounded up or down where slots are kept as bfloat16."""

from __future__ import annotations

import zlib
from typing import Any

from keras import ops

from keras_tfopt.engine.state import DITHER


def _mixed(x: Any) -> Any:
    """Return other integers from 0 to 2**31 - 1, mixed; no product is larger than that."""
    for factor in (28657, 31981, 25717):
        x = ((x & 0xFFFF) * factor) ^ ops.right_shift(x, 16)
    return x


def seed_of(slot: str) -> int:
    """Return a number of 15 bits for a slot, so that equal values of two slots round apart."""
    return zlib.crc32(slot.encode()) & 0x7FFF


def dither_of(step: Any) -> dict[str, Any]:
    """Return the two numbers of 16 bits by which a step rounds, as scalars of integers.

    They are computed once for a step: compiled code would do it again for each vector.
    """
    start = _mixed(_mixed(ops.cast(step, "int32") & 0x7FFFFFFF) ^ 0x2545F491)
    factor = ops.right_shift(_mixed(start ^ 0x1B873593), 8)
    return {DITHER + "start": start & 0xFFFF, DITHER + "factor": factor & 0x7FFF}
