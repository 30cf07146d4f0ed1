"""What layer-wise rules divide by."""

from __future__ import annotations

from typing import Any

from keras import ops


def trust_ratio(x_norm: Any, g_norm: Any, denominator: Any) -> Any:
    """Return the norm of a variable over the denominator; 1 where a norm is zero."""
    both = ops.logical_and(x_norm > 0, g_norm > 0)
    return ops.where(both, x_norm / denominator, ops.ones_like(x_norm))
