from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import one_of
from keras_tfopt.engine import eigh
from keras_tfopt.fields import field, within
from keras_tfopt.rule import Rule, register


@register
class ConditionalGradient(Rule):
    r"""Frank and Wolfe's method: variables stay in a ball, by steps towards points of its edge.

    $$
    x \leftarrow \eta x - (1 - \eta) \lambda s
    $$

    where $-\lambda s$ is the point of the ball of radius $\lambda$ that the gradient favors most:

    $$
    s = \begin{cases}
        g / (\lVert g \rVert + \epsilon) & \text{for the Frobenius norm} \\
        u v^\top & \text{for the nuclear norm}
    \end{cases}
    $$

    with the first singular vectors $u$ and $v$ of $g$. $\eta = 1$ stays in place, so the learning
    rate has to rise to 1 for a variable to come to rest: $\eta = 1 - 2 / (t + 2)$ in the paper.

    Args:
        learning_rate: $\eta$, number in [0, 1], schedule or callable. Defaults to 0.1.
        lambda_: $\lambda \geq 0$, the radius of the ball. Defaults to 0.01.
        epsilon: Number >= 0 that keeps the norm from zero. The nuclear norm does without. Defaults
            to 1e-7.
        ord: The norm, "fro" or "nuclear". The latter gives matrices of low rank. Defaults to "fro".
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: none.

    Row gradients: only touched rows shrink and move. The norm, or the singular vectors, are those
    of the dense gradient.

    With the nuclear norm, vectors and scalars are matrices of one column, and all but the last axis
    of larger variables are laid together, as in the kernels of convolutions.

    Example:
    >>> model.compile(optimizer=keras_tfopt.ConditionalGradient(0.99, lambda_=10.0))

    References: Frank and Wolfe, "An algorithm for quadratic programming" (1956); Jaggi, "Revisiting
    Frank-Wolfe: Projection-Free Sparse Convex Optimization" (2013).

    Differences: `tensorflow_addons.optimizers.ConditionalGradient` has no default for the rate,
    keeps a slot that it never writes, and takes no variables of more than two axes with the
    nuclear norm. A gradient of zeros has no direction: the variable shrinks, where the original
    moves towards a point that depends on the library. Keras has no such optimizer.
    """

    scope = "variable"
    sparse = "rows"

    learning_rate: Any = 0.1
    lambda_: float = within(0, default=0.01)
    epsilon: float = within(0, default=1e-7)
    ord: str = field(one_of("fro", "nuclear"), default="fro")

    def __post_init__(self) -> None:
        # Decompositions are slow where XLA compiles them for a CPU.
        self.flat = self.fused = self.ord == "fro"

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if self.flat:
            size = t.norm(g) + self.epsilon
            direction = g / ops.where(size > 0, size, ops.ones_like(size))
        else:
            direction = g if 0 in g.shape else _first_singular_pair(g)
        return t.lr * x - (1 - t.lr) * self.lambda_ * direction, {}


def _first_singular_pair(g: Any) -> Any:
    """Return the product of the first singular vectors; zeros for a gradient of zeros."""
    matrix = ops.reshape(g, (-1, int(g.shape[-1]) if len(g.shape) > 1 else 1))
    rows, columns = matrix.shape
    # The number of touched rows may be unknown here.
    is_wide = isinstance(rows, int) and rows < columns
    product = _pair_of_tall(ops.transpose(matrix) if is_wide else matrix)
    product = ops.transpose(product) if is_wide else product
    return ops.reshape(product, (-1, *g.shape[1:]) if len(g.shape) else ())


def _pair_of_tall(matrix: Any) -> Any:
    largest = ops.max(ops.abs(matrix))  # squares of small numbers would be zero
    matrix = matrix / ops.where(largest > 0, largest, ops.ones_like(largest))
    _, vectors = eigh(ops.transpose(matrix) @ matrix)
    right = vectors[:, -1:]
    left = matrix @ right
    norm = ops.sqrt(ops.sum(ops.square(left)))
    return (left / ops.where(norm > 0, norm, ops.ones_like(norm))) @ ops.transpose(right)
