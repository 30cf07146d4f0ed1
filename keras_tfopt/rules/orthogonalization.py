"""The nearest orthogonal matrix by matrix products alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.checks import check_number
from keras_tfopt.engine import add_product, norm, singular_values

NORMS = ("frobenius", "spectral", "schatten", "aol")


def orthogonalized(
    matrices: Any,
    steps: int,
    coefficients: Sequence[Any],
    kind: str,
    epsilon: Any,
    dtype: str | None,
) -> Any:
    """Return matrices with their singular values moved near 1, by Newton-Schulz iterations.

    Args:
        matrices: Tensor of shape (rows, columns), or (n, rows, columns).
        steps: Number of iterations.
        coefficients: a, b, c of `a X + (b A + c A A) X` with A the product of X and its transpose,
            or a list of these for each iteration.
        kind: One of `NORMS`, by which a matrix is divided before.
        epsilon: Number > 0 that is added to the norm.
        dtype: Data type of the products; None takes that of the matrices.
    """
    rows, columns = (int(n) for n in matrices.shape[-2:])  # objects in graphs of TensorFlow 1
    wide = rows <= columns
    x = matrices if wide else _transposed(matrices)
    x = x / (_norms(x, kind) + epsilon)
    x = x if dtype is None else ops.cast(x, dtype)
    each = coefficients if isinstance(coefficients[0], Sequence) else [coefficients] * steps
    for a, b, c in each:
        # Not `ops.matmul`, which rounds to float32 on PyTorch.
        product = x @ _transposed(x)
        x = add_product(x, a, add_product(product, b, product, product, c), x, 1.0)
    x = ops.cast(x, matrices.dtype)
    return x if wide else _transposed(x)


def _transposed(x: Any) -> Any:
    return ops.swapaxes(x, -2, -1)


def _norms(x: Any, kind: str) -> Any:
    """Return a norm of each matrix, or a number for each of its rows."""
    if kind == "spectral":
        return singular_values(x)[..., :1, None]
    if kind == "frobenius":
        if len(x.shape) == 2:
            return norm(x)  # in one pass
        return ops.sqrt(ops.sum(ops.square(x), axis=(-2, -1), keepdims=True))
    product = x @ _transposed(x)
    if kind == "aol":
        return ops.sqrt(ops.sum(ops.abs(product), axis=-1, keepdims=True))
    return ops.sqrt(ops.sqrt(ops.sum(ops.square(product), axis=(-2, -1), keepdims=True)))


def check_coefficients(name: str, value: Any) -> list[Any]:
    """Return three numbers, or three for each iteration, or raise an error."""
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    each = given if given and isinstance(given[0], Sequence) else [given]
    if any(not isinstance(row, Sequence) or len(row) != 3 for row in each):
        raise ValueError(
            f"Argument `{name}` must be three numbers, or a list of three for each iteration. "
            f"Received: {value!r}"
        )
    checked = [[check_number(name, number) for number in row] for row in each]
    return checked if each is given else checked[0]


def check_iterations(steps: int, coefficients: Sequence[Any]) -> None:
    """Raise an error if there are coefficients for another number of iterations."""
    if isinstance(coefficients[0], Sequence) and len(coefficients) != steps:
        raise ValueError(
            "Argument `ns_coefficients` must be three numbers, or a list of three for each of "
            f"`ns_steps` iterations. Received: {list(coefficients)}, and ns_steps={steps}"
        )
