from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import flag
from keras_tfopt.rule import register
from keras_tfopt.rules.adam import Adam


@register
class LazyAdam(Adam):
    r"""Adam that leaves rows without gradient alone: for embedding tables.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{m}{\sqrt{v} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, whether or not a row took part in them.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        amsgrad: Whether the denominator never shrinks, in variables with dense gradients; rows do
            without. Defaults to False.
        catch_up: Whether the moments of a row that comes back decay for the steps that it missed,
            $m \leftarrow \beta_1^k m$ and $v \leftarrow \beta_2^k v$ for $k$ steps, before its
            gradient is added. They are then those of Adam with zero gradients in between, and
            only the row itself rested. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape. With `amsgrad` also `vhat`, the
    largest second moment so far; with `catch_up` also `last`, the step in which a row was touched
    last, int32 of shape `(rows,)`.

    Row gradients: only touched rows of variable and moments change, so the cost of the rule is that
    of the rows in the batch. Rare rows keep their moments instead of losing them between two
    occurrences; what is learned differs from Adam for this reason, often for the better. With
    `catch_up` they lose them when they come back, at the cost of these rows only.
    Variables with dense gradients get plain Adam.

    Example:
    >>> model.compile(optimizer=keras_tfopt.LazyAdam(1e-3))

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), with the lazy
    treatment of rows of `tf.contrib.opt.LazyAdamOptimizer`.

    Differences: as there, epsilon is added after the bias correction ("epsilon hat" in the paper).
    `keras.optimizers.Adam` does the same with 1e-7, and updates every row of a table at each step.
    `tensorflow_addons.optimizers.LazyAdam` has an epsilon of 1e-7, and `amsgrad` as here.
    """

    sparse = "rows"
    rows_alone = True

    catch_up: bool = flag(default=False)

    def __post_init__(self) -> None:
        # A slot with one number a row is for rules that see variables in their shape.
        self.scope = "variable" if self.catch_up else "element"

    def slots(self, like: Any) -> dict[str, Any]:
        last = {"last": Slot(like.shape[:1], 0, "int32")} if self.catch_up and like.shape else {}
        return {**super().slots(like), **last}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        last = {}
        if self.catch_up and len(g.shape):
            missed = ops.cast(t.iteration - 1 - s.last, g.dtype)
            missed = ops.reshape(missed, (-1, *[1] * (len(g.shape) - 1)))
            s = s._replace(m=self.beta_1**missed * s.m, v=self.beta_2**missed * s.v)
            last = {"last": ops.zeros_like(s.last) + t.iteration}
        x, new = super().update(g, x, s, t)
        return x, {**new, **last}
