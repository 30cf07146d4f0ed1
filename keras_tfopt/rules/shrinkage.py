"""What proximal rules do to a weight for its L1 and L2 penalties."""

from __future__ import annotations

from typing import Any

from keras import ops


def soft_threshold(u: Any, threshold: Any) -> Any:
    """Return `u` moved towards zero by `threshold`, no further than to zero; NaN stays NaN."""
    length = ops.abs(u) - threshold
    return ops.where(length <= 0, ops.zeros_like(u), ops.sign(u) * length)


def proximal(u: Any, rate: Any, l1: Any, l2: Any) -> Any:
    """Return the weight that a step of size `rate` to `u` has after both penalties."""
    return soft_threshold(u, rate * l1) / (1 + rate * l2)
