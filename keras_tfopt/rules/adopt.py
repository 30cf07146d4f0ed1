from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, full, register, zeros
from keras_tfopt.rules.moments import at_least, at_most


@register
class ADOPT(Rule):
    r"""Adam that converges with any $\beta_2$: the present gradient is not in its denominator.

    The first gradient of a variable sets $v \leftarrow g^2$, and nothing moves. After that, in the
    optimizer's step $t$

    $$
    \begin{aligned}
    u &= \operatorname{clip}\left(\frac{g}{\max(\sqrt v, \epsilon)}, \pm (t - 1)^p\right) \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) u \\
    x &\leftarrow x - \eta m \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2
    \end{aligned}
    $$

    and with Nesterov's momentum, $x \leftarrow x - \eta (\beta_1 m + (1 - \beta_1) u)$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the momentum, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.9999.
        epsilon: Smallest denominator, number > 0. Defaults to 1e-6.
        clip_exponent: $p \geq 0$. Defaults to 0.25.
        clipping: Whether $u$ is clipped. Defaults to True.
        nesterov: Whether to look ahead. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the momentum, and `v`, the second moment, of the variable's shape; `v` is -1 before
    the first gradient.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> model.compile(optimizer=keras_tfopt.ADOPT(1e-3))

    Reference: Taniguchi et al., "ADOPT: Modified Adam Can Converge with Any Beta_2 with the Optimal
    Rate" (2024).

    Differences: `weight_decay` acts in the first step, too. timm's `Adopt` adds the decay to the
    gradient unless it is told not to, and clips with an exponent of 0.333. It counts t for each
    variable. With `slot_dtype="int8"`, v is set in the optimizer's first step alone: it is 0 in
    variables whose first gradient comes later. Keras has no such optimizer.
    """

    learning_rate: Any = 0.001
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.9999, right_open=True)
    epsilon: float = within(0, default=1e-6, left_open=True)
    clip_exponent: float = within(0, default=0.25)
    clipping: bool = flag(default=True)
    nesterov: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like), "v": full(like, -1.0, signed=False)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "limit": (step - 1) ** self.clip_exponent}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        u = g / at_least(ops.sqrt(at_least(s.v, 0.0)), self.epsilon)
        if self.clipping:
            u = at_most(at_least(u, -t.limit), t.limit)
        # Slots of 8 bits have no negative v.
        is_first = ops.logical_or(s.v < 0, t.step <= 1)
        u = ops.where(is_first, ops.zeros_like(u), u)
        m = self.beta_1 * s.m + (1 - self.beta_1) * u
        ahead = self.beta_1 * m + (1 - self.beta_1) * u if self.nesterov else m
        square = ops.square(g)
        v = ops.where(is_first, square, self.beta_2 * s.v + (1 - self.beta_2) * square)
        return x - t.lr * ahead, {"m": m, "v": v}
