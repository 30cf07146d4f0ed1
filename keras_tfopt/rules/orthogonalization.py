"""The nearest orthogonal matrix by matrix products alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops


def orthogonalized(
    matrices: Any, steps: int, coefficients: Sequence[float], epsilon: Any, dtype: str | None
) -> Any:
    """Return matrices with their singular values moved near 1, by Newton-Schulz iterations.

    Args:
        matrices: Tensor of shape (n, rows, columns).
        steps: Number of iterations.
        coefficients: a, b, c of a X + (b A + c A A) X with A the product of X and its transpose.
        epsilon: Number > 0 that is added to the norm by which a matrix is divided before.
        dtype: Data type of the products; None takes that of the matrices.
    """
    a, b, c = coefficients
    norm = ops.sqrt(ops.sum(ops.square(matrices), axis=(1, 2), keepdims=True))
    x = matrices / (norm + epsilon)
    wide = int(x.shape[1]) <= int(x.shape[2])  # objects where TensorFlow behaves as its version 1
    x = x if wide else ops.transpose(x, (0, 2, 1))
    x = x if dtype is None else ops.cast(x, dtype)
    for _ in range(steps):
        # Not `ops.matmul`, which rounds to float32 on PyTorch.
        product = x @ ops.transpose(x, (0, 2, 1))
        x = a * x + (b * product + c * (product @ product)) @ x
    x = ops.cast(x, matrices.dtype)
    return x if wide else ops.transpose(x, (0, 2, 1))
