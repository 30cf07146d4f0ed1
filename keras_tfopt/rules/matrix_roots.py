"""Roots of symmetric positive semi-definite matrices."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool, check_number
from keras_tfopt.engine import eigh, eigh_is_slow, while_loop

# Of the iteration: steps after which even the smallest eigenvalue that the data type resolves has
# converged, and the residual at which to stop.
_LIMITS = {"float32": (50, 1e-5), "float64": (90, 1e-12)}


def matrix_inverse_pth_root(
    matrix: Any, p: float, epsilon: float = 0.0, iterative: bool | None = None
) -> Any:
    r"""Return the inverse p-th root $A^{-1/p}$ of a symmetric positive definite matrix.

    By eigenvalues, $A = U \Lambda U^\top$: $U \max(\Lambda, \epsilon)^{-1/p} U^\top$. Or by the
    coupled Newton iteration, which takes nothing but matrix products: with
    $z = (1 + p) / (2 \lVert A \rVert_F)$, $X = z^{1/p} I$ and $M = z A$,

    $$
    T = \frac{(p + 1) I - M}{p}, \qquad X \leftarrow X T, \qquad M \leftarrow T^p M
    $$

    until M is the identity; then X is the root. As A is divided by its norm first, it does not
    matter how large that is.

    Args:
        matrix: A, tensor of shape (n, n), float32 or float64. Only symmetric matrices have a
            meaning here; this is not checked.
        p: Number > 0; with the iteration, an integer.
        epsilon: Number >= 0: smaller eigenvalues count as this; with the iteration it is not used.
        iterative: True for the iteration, False for eigenvalues. The default None takes the
            iteration where XLA compiles TensorFlow for a CPU and p is an integer: there, 256 x 256
            takes 140 ms to decompose (5 without XLA, on two cores) and 30 by the iteration.

    Returns:
        Tensor of shape (n, n). Eigenvalues below about 1e-6 (float32) of the largest are lost in
        rounding with either way; the iteration adds that much of the norm to all of them.

    Raises:
        ValueError: if the shape is not (n, n), or an argument is out of its range.

    Example:

    >>> root = keras_tfopt.matrix_inverse_pth_root([[4.0, 0.0], [0.0, 9.0]], 2)
    >>> # [[0.5, 0], [0, 0.333]]

    Reference: Guo and Higham, "A Schur-Newton Method for the Matrix p-th Root and its Inverse"
    (2006).

    Differences: the function of this name in TensorFlow 1 takes the exponent $-1/p$ and the size of
    the matrix. It begins with a square root that is wrong for matrices of a small norm.
    """
    matrix = _checked(matrix)
    p = check_number("p", p, 0, left_open=True)
    epsilon = check_number("epsilon", epsilon, 0)
    return inverse_root(matrix, 1 / p, epsilon, use_iteration(iterative, p))


def matrix_square_root(matrix: Any, iterative: bool | None = None) -> Any:
    r"""Return the square root $A^{1/2}$ of a symmetric positive semi-definite matrix.

    By eigenvalues, where those below zero count as zero, or as $A A^{-1/2}$ by the iteration of
    `keras_tfopt.matrix_inverse_pth_root`.

    Args:
        matrix: A, tensor of shape (n, n), float32 or float64.
        iterative: As there.

    Returns:
        Tensor of shape (n, n).

    Raises:
        ValueError: if the shape is not (n, n).

    Example:

    >>> root = keras_tfopt.matrix_square_root([[4.0, 0.0], [0.0, 9.0]])  # [[2, 0], [0, 3]]

    Reference: Higham, "Functions of Matrices" (2008).

    Differences: the function of this name in TensorFlow 1 takes the size of the matrix, and returns
    $A / \sqrt{\lVert A \rVert}$ where that norm is small.
    """
    matrix = _checked(matrix)
    if use_iteration(iterative, 2):
        # Where A is zero, so is its root, whatever the inverse may be.
        return matrix @ inverse_root(matrix, 0.5, 0.0, True)
    values, vectors = eigh(matrix)
    roots = ops.sqrt(ops.where(values > 0, values, ops.zeros_like(values)))
    return (vectors * roots) @ ops.transpose(vectors)


def use_iteration(wanted: bool | None, p: float) -> bool:
    """Return whether to iterate for an inverse p-th root."""
    if wanted is not None:
        check_bool("iterative", wanted)
    whole = p == round(p)
    if wanted and not whole:
        raise ValueError(f"Argument `p` must be an integer for the iteration. Received: {p!r}")
    return whole and (eigh_is_slow() if wanted is None else wanted)


def inverse_root(matrix: Any, exponent: Any, epsilon: Any, iterative: bool) -> Any:
    """Return `matrix`, or each of a batch, to the power -exponent."""
    if iterative:
        return _by_products(matrix, round(1 / exponent))
    values, vectors = eigh(matrix)
    values = ops.where(values > epsilon, values, epsilon * ops.ones_like(values))
    return (vectors * values[..., None, :] ** -exponent) @ ops.swapaxes(vectors, -1, -2)


def inverse_roots(matrices: list[Any], exponent: Any, ridge: Any, iterative: bool) -> list[Any]:
    """Return matrices, or batches of them, with a ridge to the power -exponent."""
    raised = [m + ridge * ops.eye(int(m.shape[-1]), dtype=m.dtype) for m in matrices]
    return [inverse_root(m, exponent, ridge, iterative) for m in raised]


def _by_products(matrix: Any, p: int) -> Any:
    dtype = keras.backend.standardize_dtype(matrix.dtype)
    limit, tolerance = _LIMITS[dtype]
    identity = ops.eye(int(matrix.shape[-1]), dtype=dtype)
    # Squares of small numbers would be zero.
    largest = ops.max(ops.abs(matrix), axis=(-2, -1), keepdims=True)
    largest = ops.where(largest > 0, largest, ops.ones_like(largest))
    square = ops.sum(ops.square(matrix / largest), axis=(-2, -1), keepdims=True)
    norm = ops.sqrt(square) * largest
    norm = ops.where(norm > 0, norm, ops.ones_like(norm))
    # Rounding may have left eigenvalues below zero, from which the iteration would run away.
    resolved = matrix / norm + tolerance / 10 * identity
    scale = (1 + p) / 2

    def residual(m: Any) -> Any:
        return ops.max(ops.abs(m - identity))

    def turn(count: Any, x: Any, m: Any) -> tuple[Any, Any, Any]:
        factor = ((p + 1) * identity - m) / p
        return count + 1, x @ factor, _power(factor, p) @ m

    def unfinished(count: Any, x: Any, m: Any) -> Any:
        return ops.logical_and(count < limit, residual(m) > tolerance)

    first = scale ** (1 / p) * (identity + ops.zeros_like(matrix))
    start = (ops.convert_to_tensor(0, "int32"), first, scale * resolved)
    _, x, _ = while_loop(unfinished, turn, start)
    return x * norm ** (-1 / p)


def _power(matrix: Any, p: int) -> Any:
    """Return a positive power in as few products as squaring takes."""
    if p == 1:
        return matrix
    half = _power(matrix @ matrix, p // 2)
    return half @ matrix if p % 2 else half


def _checked(matrix: Any) -> Any:
    matrix = ops.convert_to_tensor(matrix)
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise ValueError(
            f"Argument `matrix` must have shape (n, n). Received: shape {tuple(matrix.shape)}"
        )
    kind = keras.backend.standardize_dtype(matrix.dtype)
    if kind not in _LIMITS:
        raise TypeError(f"Argument `matrix` must be float32 or float64. Received: dtype {kind}")
    return matrix
