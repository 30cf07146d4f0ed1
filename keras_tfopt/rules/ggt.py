from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Rows, Slot, combine_rows, eigh, row_products
from keras_tfopt.fields import integer, within
from keras_tfopt.rule import Rule, register


@register
class GGT(Rule):
    r"""Full-matrix adaptive regularization over a window of recent gradients.

    All variables are one vector x of length n. With the last $w$ first moments as rows of $B$
    (row $(t - 1) \bmod w$ is replaced at step t) and $k = \min(t, w)$:

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad M = B^\top / \sqrt{k} \\
    U \Sigma U^\top &= M^\top M + \epsilon_\text{svd} I \\
    d &= M U (\Sigma^{1/2} + \epsilon_\sigma)^{-3} U^\top M^\top m \\
    d &\leftarrow d + \frac{m - M U \Sigma^{-1} U^\top M^\top m}{\sigma_{\min}}
      \quad \text{if } \sigma_{\min} = \min \Sigma^{1/2} > \epsilon \\
    x &\leftarrow x - \eta d
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 0.001.
        beta_1: $\beta_1$ in [0, 1). Defaults to 0.9.
        window: $w \geq 1$, how many first moments are kept. Defaults to 10.
        epsilon: $\epsilon \geq 0$, the smallest singular value for which the part of the gradient
            outside of the window counts. Defaults to 1e-4.
        svd_epsilon: $\epsilon_\text{svd} \geq 0$. Defaults to 1e-6.
        sigma_epsilon: $\epsilon_\sigma > 0$. Defaults to 1e-2.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: of all variables together (`optimizer.slot(None, name)`), laid out in the order in which
    the optimizer was built. `moment1` of shape (n,), `grad_buffer` of shape (window, n), and
    `gram`, the products of the buffer's rows. Memory is window + 1 numbers a parameter.

    Row gradients: as if dense.

    A gradient with NaN, infinity, or numbers whose squares overflow raises a ValueError in eager
    steps and leaves everything as it is. Compiled steps cannot raise: the window is spoiled until
    it has been replaced, the weights for good. Wrap the optimizer in a `LossScaleOptimizer` where
    that may happen.

    Example:
    >>> model.compile(optimizer=keras_tfopt.GGT(0.01, window=20))

    Reference: Agarwal et al., "Efficient Full-Matrix Adaptive Regularization" (2019).

    Differences: from `tf.contrib.opt.GGTOptimizer`, state is laid out in build order and not by
    name; eigenvalues stand in for the singular values of the same symmetric matrix; the products
    $B B^\top$ are kept, so that a step reads the buffer twice, whatever the window. Keras
    has no GGT.
    """

    scope = "model"
    second_order = True
    needs_finite = True

    learning_rate: Any = 0.001
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    window: int = integer(1, default=10)
    epsilon: float = within(0, default=1e-4)
    svd_epsilon: float = within(0, default=1e-6)
    sigma_epsilon: float = within(0, default=1e-2, left_open=True)

    def slots(self, like: Any) -> dict[str, Slot]:
        w = self.window
        return {"moment1": Slot((None,)), "grad_buffer": Slot((w, None)), "gram": Slot((w, w))}

    def derived(self, slots: dict[str, Any]) -> dict[str, Any]:
        """Return the slots that follow from the others, which the original does not keep."""
        rows = slots["grad_buffer"]
        return {"gram": rows @ ops.transpose(rows)}

    def sums(self, g: Any, x: Any, s: Any, t: Any) -> dict[str, Any]:
        m = self._moment(g, s)
        return {"square": row_products(m[None], m), "products": row_products(s.grad_buffer, m)}

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        index = (t.iteration - 1) % self.window
        new = ops.equal(ops.arange(self.window), index)
        # The row that m replaces is put right in the small products, not in the large buffer.
        c = ops.where(new, t.square, t.products)
        gram = ops.where(new[:, None], c[None, :], ops.where(new[None, :], c[:, None], s.gram))

        k = ops.where(t.step < self.window, t.step, self.window * ops.ones_like(t.step))
        identity = ops.eye(self.window, dtype=c.dtype)
        sigma, u = eigh(gram / k + self.svd_epsilon * identity)
        sigma = ops.abs(sigma)
        root = ops.sqrt(sigma)
        p = (c[None] @ u)[0] / ops.sqrt(k)
        weights = p * (root + self.sigma_epsilon) ** -3

        smallest = ops.min(root)
        has_outside = smallest > self.epsilon
        outside = ops.where(has_outside, 1 / smallest, ops.zeros_like(smallest))
        inside = outside * p / ops.where(has_outside, sigma, ops.ones_like(sigma))
        y = (u @ (weights - inside)[:, None])[:, 0] / ops.sqrt(k)
        # The learning rate goes into the small numbers, not once more over the large ones.
        rows = -t.lr * ops.where(new, ops.zeros_like(y), y)
        moment = -t.lr * (ops.sum(ops.where(new, y, ops.zeros_like(y))) + outside)
        return {"index": index, "rows_weights": rows, "moment_weight": moment}, {"gram": gram}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self._moment(g, s)
        x = x + combine_rows(t.rows_weights, s.grad_buffer) + t.moment_weight * m
        return x, {"moment1": m, "grad_buffer": Rows(t.index, m)}

    def _moment(self, g: Any, s: Any) -> Any:
        return self.beta_1 * s.moment1 + (1 - self.beta_1) * g
