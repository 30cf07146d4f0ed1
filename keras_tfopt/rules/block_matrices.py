"""What Shampoo multiplies the axes of blocks by: roots of matrices, or bases of eigenvectors."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import conditional
from keras_tfopt.rules.blocks import Blocks, along, with_products
from keras_tfopt.rules.eigenbases import eigenbasis
from keras_tfopt.rules.matrix_roots import inverse_roots, use_iteration
from keras_tfopt.rules.moments import over_root
from keras_tfopt.rules.preconditioning import decayed, is_due, whole_root


def preconditioned(
    rule: Any, blocks: Blocks, direction: Any, g: Any, s: Any, t: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a direction times the matrices of all axes, and the new slots of blocks.

    Args:
        rule: The `DistributedShampoo`.
        blocks: How the variable is cut.
        direction: What is multiplied, cut into blocks.
        g: The gradient, of the variable's shape.
        s: The slots.
        t: The scalars.
    """
    axes, batch = range(len(blocks.size)), blocks.cut(g)
    totals = [with_products(getattr(s, f"L_{i}"), rule.beta_2, batch, i, 1) for i in axes]
    exponent = rule.exponent_override or 1 / (2 * len(axes))
    iterative = use_iteration(rule.use_iterative_root, whole_root(exponent))

    def updated() -> list[Any]:
        if rule.eigenvalue_corrected:
            return [ops.flip(eigenbasis(total), axis=-1) for total in totals]
        corrected = [total / t.of_products for total in totals]
        return inverse_roots(corrected, exponent, rule.epsilon, iterative)

    matrices = [getattr(s, f"{rule.matrix_name}_{i}") for i in axes]
    if rule.precondition_frequency == rule.first_root == 1:
        matrices = updated()
    else:
        due, kept = is_due(t.iteration, rule.first_root, rule.precondition_frequency), matrices
        matrices = conditional(due, updated, lambda: kept)
    names = [*(f"L_{i}" for i in axes), *(f"{rule.matrix_name}_{i}" for i in axes)]
    new = dict(zip(names, [*totals, *matrices], strict=True))
    if rule.eigenvalue_corrected:
        turned = [ops.swapaxes(basis, -1, -2) for basis in matrices]
        squares = decayed(s.E, rule.beta_2, ops.square(_along_all(batch, turned)))
        root = ops.sqrt(squares / t.of_products)
        direction = over_root(_along_all(direction, turned), root, rule.epsilon)
        new |= {"E": squares}
    return _along_all(direction, matrices), new


def _along_all(batch: Any, matrices: list[Any]) -> Any:
    """Return blocks, each axis of which is multiplied by its matrix."""
    for axis, matrix in enumerate(matrices):
        batch = along(batch, axis, matrix)
    return batch
