"""Eigenvectors of symmetric matrices as columns of a basis."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import eigh


def eigenbasis(matrix: Any) -> Any:
    """Return eigenvectors of a matrix, or of each of a batch, by descending eigenvalues.

    The largest entry of each is positive, so that backends agree.
    """
    _, vectors = eigh(matrix)
    vectors = ops.flip(vectors, axis=-1)
    low, high = ops.min(vectors, axis=-2, keepdims=True), ops.max(vectors, axis=-2, keepdims=True)
    return ops.where(-low > high, -vectors, vectors)


def next_eigenbasis(matrix: Any, basis: Any) -> tuple[Any, Any]:
    """Return a basis that is nearer to the eigenvectors, by one power iteration.

    Returns:
        The basis, by descending estimates of the eigenvalues; and the order in which the vectors of
        the old basis have taken part.
    """
    image = matrix @ basis
    order = ops.argsort(-ops.sum(basis * image, axis=0))
    q, r = ops.qr(ops.take(image, order, axis=1))
    diagonal = ops.sum(r * ops.eye(int(r.shape[0]), dtype=r.dtype), axis=0)
    return ops.where(diagonal < 0, -q, q), order
