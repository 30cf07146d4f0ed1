from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Rows, Slot, combine_rows, row_products
from keras_tfopt.fields import integer
from keras_tfopt.rule import Rule, register


@register
class LBFGS(Rule):
    r"""Limited-memory BFGS: steps by the curvature that the last steps have met.

    All variables are one vector x, and $s_i$ are the last $m$ steps, $y_i$ the changes of the
    gradient over them, the oldest first. With $\rho_i = 1 / \langle y_i, s_i \rangle$:

    $$
    \begin{aligned}
    q &= g; \qquad \alpha_i = \rho_i \langle s_i, q \rangle, \quad q \leftarrow q - \alpha_i y_i
      \quad \text{for } i = m, \dots, 1 \\
    r &= \gamma q; \qquad r \leftarrow r + (\alpha_i - \rho_i \langle y_i, r \rangle) s_i
      \quad \text{for } i = 1, \dots, m \\
    \gamma &= \frac{\langle s_m, y_m \rangle}{\langle y_m, y_m \rangle}, \quad
      \text{without any pair } \gamma = \frac{1}{\max(1, \lVert g \rVert)} \\
    x &\leftarrow x - \eta r
    \end{aligned}
    $$

    A pair is kept if $\langle s, y \rangle > 10^{-8} \langle y, y \rangle$, so that steps go
    downhill. The recursion runs on the products of pairs, in its compact form.

    Gradients must be those of all of the data, or of one large batch. Do not clip them by
    `clipnorm`, `global_clipnorm` or `clipvalue`: changes of clipped gradients are no curvature, and
    steps become longer, not shorter.

    `fit` with `keras_tfopt.solvers.LineSearch` finds the length of each step; in plain `fit`, the
    learning rate is the length.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 1.
        memory: $m \geq 1$, how many pairs are kept. Defaults to 10.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: of all variables together (`optimizer.slot(None, name)`), laid out in the order in which
    the optimizer was built. `steps` and `changes` of shape (memory + 1, n), the pairs, in which one
    row is free; `last_x` and `last_gradient` of shape (n,); `steps_changes` and `changes_changes`,
    products of pairs; and `pairs`, how many were kept. Memory is 2 memory + 4 numbers a parameter.

    Row gradients: as if dense.

    A gradient with NaN, infinity, or numbers whose squares overflow raises a ValueError in eager
    steps and leaves everything as it is.

    Example:
    >>> trainer = keras_tfopt.solvers.LineSearch(model)
    >>> trainer.compile(keras_tfopt.LBFGS(memory=20), loss="mse")

    Reference: Liu and Nocedal, "On the Limited Memory BFGS Method for Large Scale Optimization"
    (1989); Byrd, Nocedal and Schnabel, "Representations of Quasi-Newton Matrices and Their Use in
    Limited Memory Methods" (1994).

    Differences: the first step of `torch.optim.LBFGS` takes the sum of magnitudes in the place of
    the norm. Keras has no L-BFGS.
    """

    scope = "model"
    second_order = True
    needs_finite = True

    learning_rate: Any = 1.0
    memory: int = integer(1, default=10)

    def slots(self, like: Any) -> dict[str, Slot]:
        rows = self.memory + 1
        vectors = {name: Slot((rows, None)) for name in ("steps", "changes")}
        products = {name: Slot((rows, rows)) for name in ("steps_changes", "changes_changes")}
        last = {"last_x": Slot((None,), "variable"), "last_gradient": Slot((None,))}
        return {**vectors, **last, **products, "pairs": Slot(())}

    def sums(self, g: Any, x: Any, s: Any, t: Any) -> dict[str, Any]:
        step, change = x - s.last_x, g - s.last_gradient
        return {
            "squared": ops.sum(g * g),
            "step_change": ops.sum(step * change),
            "change_change": ops.sum(change * change),
            "step_gradient": ops.sum(step * g),
            "change_gradient": ops.sum(change * g),
            "steps_change": row_products(s.steps, change),
            "steps_gradient": row_products(s.steps, g),
            "changes_step": row_products(s.changes, step),
            "changes_change": row_products(s.changes, change),
            "changes_gradient": row_products(s.changes, g),
        }

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        rows = self.memory + 1
        free = ops.cast(s.pairs, "int32") % rows
        new = ops.equal(ops.arange(rows, dtype="int32"), free)
        # The products of all pairs with the new one in the free row.
        sy = ops.where(new[None, :], t.steps_change[:, None], s.steps_changes)
        sy = ops.where(new[:, None], t.changes_step[None, :], sy)
        yy = ops.where(new[None, :], t.changes_change[:, None], s.changes_changes)
        yy = ops.where(new[:, None], t.changes_change[None, :], yy)
        corner = ops.logical_and(new[:, None], new[None, :])
        sy = ops.where(corner, t.step_change, sy)
        yy = ops.where(corner, t.change_change, yy)
        sg = ops.where(new, t.step_gradient, t.steps_gradient)
        yg = ops.where(new, t.change_gradient, t.changes_gradient)

        kept = t.step_change > 1e-8 * t.change_change
        pairs = s.pairs + ops.cast(kept, s.pairs.dtype)
        age = ops.cast(pairs, "int32") - self.memory + ops.arange(self.memory, dtype="int32")
        order, there = age % rows, age >= 0  # the oldest first; those before the first are not
        sy_now, yy_now = (ops.take(ops.take(m, order, axis=0), order, axis=1) for m in (sy, yy))
        sg, yg = ops.take(sg, order), ops.take(yg, order)
        weights, gamma = self._weights(sy_now, yy_now, sg, yg, there, t.squared)
        # Back to the places in the buffers; the new pair is not in them yet.
        at = ops.equal(ops.arange(rows, dtype="int32")[:, None], order[None, :])
        placed = [ops.sum(ops.where(at, w[None, :], 0 * w[None, :]), axis=1) for w in weights]
        known = {}
        for name, w in zip(("steps", "changes"), placed, strict=True):
            known[f"of_{name}"] = -t.lr * ops.where(new, 0 * w, w)
            known[f"of_new_{name}"] = -t.lr * ops.sum(ops.where(new, w, 0 * w))
        known |= {"of_gradient": -t.lr * gamma, "free": free}
        return known, {"steps_changes": sy, "changes_changes": yy, "pairs": pairs}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        step, change = x - s.last_x, g - s.last_gradient
        move = t.of_gradient * g + t.of_new_steps * step + t.of_new_changes * change
        move = move + combine_rows(t.of_steps, s.steps) + combine_rows(t.of_changes, s.changes)
        new = {"steps": Rows(t.free, step), "changes": Rows(t.free, change)}
        return x + move, {**new, "last_x": x, "last_gradient": g}

    def _weights(self, sy: Any, yy: Any, sg: Any, yg: Any, there: Any, squared: Any) -> Any:
        """Return the weights of steps, of changes and of the gradient in the direction."""
        both = ops.logical_and(there[:, None], there[None, :])
        unit = ops.eye(self.memory, dtype=sy.dtype)
        sy, yy = ops.where(both, sy, unit), ops.where(both, yy, 0 * unit)
        sg, yg = (ops.where(there, v, 0 * v) for v in (sg, yg))
        gamma = sy[-1, -1] / ops.where(there[-1], yy[-1, -1], 1.0 + 0 * yy[-1, -1])
        first = 1 / ops.sqrt(ops.where(squared > 1, squared, 1.0 + 0 * squared))
        gamma = ops.where(there[-1], gamma, first)
        upper = ops.triu(sy)
        p = ops.solve_triangular(upper, sg[:, None])
        diagonal = ops.diagonal(sy)[:, None]
        right = diagonal * p + gamma * (ops.sum(yy * p[:, 0], axis=1) - yg)[:, None]
        a = ops.solve_triangular(ops.transpose(upper), right, lower=True)
        return (a[:, 0], -gamma * p[:, 0]), gamma
