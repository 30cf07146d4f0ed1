"""Functions of `tf.contrib.opt`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keras import ops

from keras_tfopt import rules, wrappers
from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.legacy.optimizer import Pairs


def clip_gradients_by_global_norm(
    gradients_variables: Iterable[tuple[Any, Any]], clip_norm: float = 20.0
) -> tuple[Pairs, Any]:
    """Scale gradients down together, so that their common norm is at most `clip_norm`.

    It is `keras_tfopt.clip_gradients_by_global_norm` on pairs.

    Args:
        gradients_variables: Pairs of a gradient, or None, and a variable.
        clip_norm: Number > 0.

    Returns:
        The pairs with clipped gradients, and their norm before clipping.
    """
    pairs = list(gradients_variables)
    clipped, norm = wrappers.clip_gradients_by_global_norm([g for g, _ in pairs], clip_norm)
    return [(g, variable) for g, (_, variable) in zip(clipped, pairs, strict=True)], norm


def matrix_square_root(
    mat_a: Any, mat_a_size: int, iter_count: int = 100, ridge_epsilon: float = 1e-4
) -> Any:
    """Return the square root of a positive semi-definite matrix.

    It is `keras_tfopt.matrix_square_root` of the matrix with a ridge. The original iterates; for a
    matrix of a small norm it stops at once with a wrong result.

    Args:
        mat_a: Matrix.
        mat_a_size: Number of its rows.
        iter_count: Integer >= 1; not used.
        ridge_epsilon: Number >= 0 that is added to the diagonal.
    """
    matrix = _ridged("mat_a", mat_a, "mat_a_size", mat_a_size, ridge_epsilon)
    check_integer("iter_count", iter_count, 1)
    return rules.matrix_square_root(matrix, iterative=False)


def matrix_inverse_pth_root(
    mat_g: Any,
    mat_g_size: int,
    alpha: float,
    iter_count: int = 100,
    epsilon: float = 1e-6,
    ridge_epsilon: float = 1e-6,
) -> Any:
    """Return the power `alpha` of a positive definite matrix, with `alpha` = -1/p.

    It is `keras_tfopt.matrix_inverse_pth_root` of the matrix with a ridge.

    Args:
        mat_g: Matrix.
        mat_g_size: Number of its rows.
        alpha: Number < 0.
        iter_count: Integer >= 1; not used.
        epsilon: Number >= 0, the residual at which the original stops; not used.
        ridge_epsilon: Number >= 0 that is added to the diagonal.
    """
    matrix = _ridged("mat_g", mat_g, "mat_g_size", mat_g_size, ridge_epsilon)
    check_integer("iter_count", iter_count, 1)
    check_number("epsilon", epsilon, 0)
    p = -1 / check_number("alpha", alpha, high=-1e-6)
    return rules.matrix_inverse_pth_root(matrix, p, iterative=False)


def _ridged(name: str, matrix: Any, size_name: str, size: Any, ridge: Any) -> Any:
    matrix = ops.convert_to_tensor(matrix)
    size = check_integer(size_name, size, 1)
    if tuple(matrix.shape) != (size, size):
        raise ValueError(
            f"Argument `{size_name}` must be the number of rows and columns of `{name}`. Received: "
            f"{size}, for shape {tuple(matrix.shape)}"
        )
    return matrix + check_number("ridge_epsilon", ridge, 0) * ops.eye(size, dtype=matrix.dtype)
