from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import flag, within
from keras_tfopt.rule import register, zeros
from keras_tfopt.rules.moments import Moments, largest, over_root


@register
class NovoGrad(Moments):
    r"""Momentum by gradients that are divided by the average norm that their layer has had.

    $$
    \begin{aligned}
    v &\leftarrow \lVert g \rVert^2 \quad \text{at the first step, then} \quad
    \beta_2 v + (1 - \beta_2) \lVert g \rVert^2 \\
    h &= \frac{g}{\sqrt{v} + \epsilon} + \lambda x \\
    m &\leftarrow \beta_1 m - \eta h \\
    x &\leftarrow x + m
    \end{aligned}
    $$

    with the Euclidean norm over the whole variable. With `grad_averaging`, $h$ is multiplied by
    $1 - \beta_1$ after the first step; with `amsgrad`, the largest $v$ so far divides.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Momentum, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the squared norm, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-7.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 0.
        grad_averaging: Whether $m$ is an average in place of a sum. Defaults to False.
        amsgrad: Whether the denominator never shrinks. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the last step, learning rate and sign included, of the variable's shape; `v`, one
    number for the variable; with `amsgrad` also `vhat`, the largest `v` so far.

    Row gradients: only touched rows of the variable and of `m` change. The norm is that of the
    dense gradient.

    Example:
    >>> model.compile(optimizer=keras_tfopt.NovoGrad(0.01, beta_2=0.98, weight_decay=1e-3))

    Reference: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for
    Training of Deep Networks" (2019).

    Differences: none in the numbers from `tensorflow_addons.optimizers.NovoGrad`, in which `vhat`
    repeats one number in the variable's shape, and `amsgrad` fails on row gradients. A gradient of
    zeros at the first step leaves variables where they are there, too, whatever epsilon is here.
    timm's `NovoGrad` counts steps for each variable, so that v starts at its own first gradient.
    Keras has no such optimizer.
    """

    scope = "variable"
    elementwise = True
    sparse = "rows"

    epsilon = 1e-7
    weight_decay: float = within(0, default=0.0)
    grad_averaging: bool = flag(default=False)
    amsgrad: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        names = ["v", "vhat"] if self.amsgrad else ["v"]
        return {"m": zeros(like), **{name: Slot((), 0.0, by_row=False) for name in names}}

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        is_first = ops.equal(t.step, 1)
        square = t.sum(ops.square(g))
        v = ops.where(is_first, square, self.beta_2 * s.v + (1 - self.beta_2) * square)
        new = {"v": v}
        if self.amsgrad:
            v = largest(s.vhat, v)
            new = {**new, "vhat": v}
        h = over_root(g, ops.sqrt(v), self.epsilon)
        h = h + (0.0 if t.is_excluded else self.weight_decay) * x
        if self.grad_averaging:
            h = ops.where(is_first, h, (1 - self.beta_1) * h)
        m = self.beta_1 * s.m - t.lr * h
        return x + m, {"m": m, **new}
