from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.checks import at_step, check_bool, check_function_of_step, check_global_step
from keras_tfopt.engine import Slot
from keras_tfopt.fields import field, integer, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.preconditioning import (
    added,
    check_interval,
    check_iteration,
    is_always,
    root,
    sum_of_products,
)

_OF_STEP = (
    "gbar_decay",
    "gbar_weight",
    "mat_gbar_decay",
    "mat_gbar_weight",
    "svd_interval",
    "precond_update_interval",
)


def _check_not_negative(name: str, value: Any) -> Any:
    return check_function_of_step(name, value, 0)


@register
class Shampoo(Rule):
    r"""Preconditioned stochastic tensor optimization: one matrix for each dimension of a variable.

    For a variable of shape $(d_1, \dots, d_n)$ let $g_i$ be the gradient as a matrix with the i-th
    dimension as rows and all others as columns. At step t

    $$
    \begin{aligned}
    \bar g &\leftarrow \gamma \bar g + \omega g \\
    \bar G_i &\leftarrow \Gamma \bar G_i + k \, \Omega \, g_i g_i^\top
        && \text{if } k \text{ divides } t \\
    H_i &\leftarrow (\bar G_i / d_i + \epsilon I)^{-\alpha / n}
        && \text{if the SVD interval divides } t \\
    x &\leftarrow x - \eta \, \bar g \times_1 H_1 \times_2 \dots \times_n H_n
    \end{aligned}
    $$

    where $\times_i$ multiplies the i-th dimension by a matrix. $H_i$ starts as the identity. For
    $d_i$ above `max_matrix_size` only the diagonal is kept,

    $$
    \bar G_i \leftarrow \Gamma \bar G_i + \Omega \operatorname{diag}(g_i g_i^\top) / d_i, \qquad
    H_i = \bar G_i^{-\alpha / n}
    $$

    in every step and without $\epsilon$ (of a vector not divided by $d_i$; 0 where $\bar G_i$ is).
    A scalar is a vector of one element.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 1.
        global_step: Variable that counts steps, for t; the step in progress is its value plus one.
            None is the optimizer's own count.
        max_matrix_size: Largest dimension with a full matrix, integer >= 1. Defaults to 768.
        gbar_decay: $\gamma \geq 0$. Defaults to 0: no average of gradients.
        gbar_weight: $\omega \geq 0$. Defaults to 1.
        mat_gbar_decay: $\Gamma \geq 0$. Defaults to 1: sums.
        mat_gbar_weight: $\Omega \geq 0$. Defaults to 1.
        svd_interval: Steps from one root to the next, >= 1. Nothing is decomposed in between.
            Defaults to 1.
        precond_update_interval: $k \geq 1$, steps from one update of the sums to the next, which
            weighs k times as much. Defaults to 1.
        epsilon: $\epsilon > 0$; smaller eigenvalues of what the root is taken of count as this.
            Defaults to 1e-4.
        alpha: Power of all preconditioners together, in (0, 1]. Defaults to 0.5.
        use_iterative_root: How to take roots: True by an iteration of matrix products, which needs
            an integer $n / \alpha$; False by eigenvalues; None, the default, as
            `keras_tfopt.matrix_inverse_pth_root` chooses, eigenvalues but where XLA compiles
            TensorFlow for a CPU.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    The decays, weights and intervals may also be functions of t, which is a tensor.

    Slots: `Gbar_0`, `Gbar_1`, ..., matrices of shape $(d_i, d_i)$ or their diagonals, of shape
    $(d_i,)$; `gbar` of the variable's shape, unless `gbar_decay` is 0; `H_0`, `H_1`, ... of the
    matrices, unless `svd_interval` is 1. Where `mat_gbar_decay` is 0, sums that nothing reads are
    not kept.

    Row gradients: only touched rows move if the first dimension is above `max_matrix_size`,
    `gbar_decay` is 0 and `mat_gbar_decay` is 1; the diagonal of that dimension is not divided by
    its size then. Otherwise as if dense.

    A gradient with NaN, infinity, or numbers whose squares overflow raises a ValueError in eager
    steps and leaves everything as it is. Compiled steps cannot raise: the sums are spoiled for
    good. Wrap the optimizer in a `LossScaleOptimizer` where that may happen.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Shampoo(0.1, svd_interval=20))

    Reference: Gupta et al., "Shampoo: Preconditioned Stochastic Tensor Optimization" (2018).

    Differences: from `tf.contrib.opt.ShampooOptimizer`, roots are taken by eigenvalues of symmetric
    matrices instead of singular values, `svd_interval` may be a function, scalars are taken, and
    row gradients of resource variables have an effect. Its iterative root is wrong for small
    gradients; its `global_step` is the constant 0 by default, with which t stays 1. The learning
    rate as a function of the step is a `LearningRateSchedule`. Keras has no such optimizer.
    """

    scope = "variable"
    second_order = True
    sparse = "rows"
    fused = False
    needs_finite = True

    learning_rate: Any = 1.0
    global_step: Any = field(lambda _, value: check_global_step(value), default=None)
    max_matrix_size: int = integer(1, default=768)
    gbar_decay: Any = field(_check_not_negative, default=0.0)
    gbar_weight: Any = field(_check_not_negative, default=1.0)
    mat_gbar_decay: Any = field(_check_not_negative, default=1.0)
    mat_gbar_weight: Any = field(_check_not_negative, default=1.0)
    svd_interval: Any = field(check_interval, default=1)
    precond_update_interval: Any = field(check_interval, default=1)
    epsilon: float = within(0, default=1e-4, left_open=True)
    alpha: float = within(0, 1, default=0.5, left_open=True)
    use_iterative_root: bool | None = field(check_bool, default=None)

    def takes_rows(self, like: Any) -> bool:
        large = bool(like.shape) and like.shape[0] > self.max_matrix_size
        return large and is_always(self.gbar_decay, 0) and is_always(self.mat_gbar_decay, 1)

    def slots(self, like: Any) -> dict[str, Slot]:
        shape = like.shape or (1,)
        check_iteration(self, len(shape))
        slots = {} if is_always(self.gbar_decay, 0) else {"gbar": zeros(like)}
        for i, d in enumerate(shape):
            matrix = d <= self.max_matrix_size
            waits = matrix and not is_always(self.precond_update_interval, 1)
            if waits or not is_always(self.mat_gbar_decay, 0):
                by_row = i == 0 and not matrix
                slots |= {f"Gbar_{i}": Slot((d, d) if matrix else (d,), by_row=by_row)}
            if matrix and not is_always(self.svd_interval, 1):
                slots |= {f"H_{i}": Slot((d, d), "identity", by_row=False)}
        return slots

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, **{name: at_step(getattr(self, name), step) for name in _OF_STEP}}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        new: dict[str, Any] = {}
        direction = t.gbar_weight * g
        if hasattr(s, "gbar"):
            direction = t.gbar_decay * s.gbar + direction
            new |= {"gbar": direction}
        # Sizes are objects where TensorFlow behaves as its version 1.
        shape = [-1 if t.rows else int(n) for n in x.shape[:1]]
        shape = shape + [int(n) for n in x.shape[1:]] or [1]
        exponent = self.alpha / len(shape)
        for i, d in enumerate(shape):
            # Dimension i comes first and goes last: after all of them, the order is as it was.
            others = -1 if d != -1 else math.prod(shape[1:])
            turned = [*shape[i + 1 :], *shape[: i + 1]]
            matrix = ops.reshape(g, (d, others))
            direction = ops.transpose(ops.reshape(direction, (d, others)))
            total, power = getattr(s, f"Gbar_{i}", None), getattr(s, f"H_{i}", None)
            if d == -1 or d > self.max_matrix_size:
                size = 1 if d == -1 or len(shape) == 1 else d
                squares = ops.sum(matrix * matrix, axis=1)
                total = added(self, total, t, t.mat_gbar_weight / size, squares)
                scale = ops.where(total > 0, total, ops.ones_like(total)) ** -exponent
                direction = ops.where(total > 0, scale, ops.zeros_like(scale)) * direction
            else:
                total = sum_of_products(self, total, t, matrix)
                power = root(self, power, t, total, exponent)
                direction = direction @ power  # which is symmetric
            kept = {f"Gbar_{i}": total, f"H_{i}": power}
            new |= {name: value for name, value in kept.items() if hasattr(s, name)}
            direction = ops.reshape(direction, turned)
            g = ops.reshape(ops.transpose(matrix), turned)
        if not t.rows:
            direction = ops.reshape(direction, x.shape)
        return x - t.lr * direction, new
