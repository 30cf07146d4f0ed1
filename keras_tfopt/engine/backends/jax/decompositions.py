"""Decompose matrices on JAX, on a CPU one at a time.

On a CPU, jaxlib (seen with 0.10) hands the matrices of a batch to other threads of the pool in
which the call itself runs, and waits. Two such calls at once wait forever on two cores. A call for
a single matrix needs no other thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from keras_tfopt.engine.backends import defaults


def eigh(matrix: Any) -> tuple[Any, Any]:
    return _in_turn(defaults.eigh, matrix)


def singular_values(matrix: Any) -> Any:
    return _in_turn(defaults.singular_values, matrix)


@functools.partial(jax.jit, static_argnums=0)  # otherwise compiled in each eager call
def _in_turn(decompose: Callable[[Any], Any], matrix: Any) -> Any:
    """Decompose the matrices of a batch one after the other on a CPU, and all at once elsewhere."""
    batch, size = matrix.shape[:-2], matrix.shape[-2:]
    if not batch:
        return decompose(matrix)

    def one_by_one(matrices: Any) -> Any:
        found = jax.lax.map(decompose, matrices.reshape(-1, *size))
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)

    return jax.lax.platform_dependent(matrix, cpu=one_by_one, default=decompose)
