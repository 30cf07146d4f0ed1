from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, integer, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.factored import divided, factor_slots, factors, rms
from keras_tfopt.rules.moments import at_least, at_most


@register
class Adafactor(Rule):
    r"""Steps divided by a second moment that is kept as its means of rows and columns.

    With means $R$ over the last axis and $C$ over the last but one, $\bar r$ the mean of $r$ over
    its last axis, and $\beta = \min(1 - t^\alpha, \beta_\text{max})$,

    $$
    \begin{aligned}
    r &\leftarrow \beta r + (1 - \beta) R(g^2 + \epsilon_1), \qquad
    c \leftarrow \beta c + (1 - \beta) C(g^2 + \epsilon_1) \\
    u &= \frac{g}{\sqrt{r c / \bar r}}, \qquad
    u \leftarrow \frac{u}{\max(1, \operatorname{rms}(u) / d)} \\
    x &\leftarrow x - \max(\epsilon_2, \operatorname{rms}(x)) \min(\eta, 1 / \sqrt t) \, u
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. Where the last two axes are not both long
    enough, an average $v$ of $g^2 + \epsilon_1$ itself is kept, by whose root $u$ is divided.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_2_decay: $\alpha \leq 0$. Defaults to -0.8.
        epsilon_1: Number > 0 that is added to squared gradients. Defaults to 1e-30.
        epsilon_2: Smallest size of a variable for its steps, number > 0. Defaults to 1e-3.
        clip_threshold: $d > 0$, largest root mean square of $u$ over a variable. Defaults to 1.
        relative_step: Whether the learning rate is at most $1 / \sqrt t$. Defaults to True.
        scale_parameter: Whether steps are multiplied by the root mean square of the variable.
            Defaults to True.
        momentum: Decay of an average of steps, in [0, 1), that is applied in their place; or None,
            the default, for no average and no slot for it.
        min_dim_size_to_factor: Length from which the last two axes are factored, integer >= 1.
            Defaults to 128.
        beta_2_cap: $\beta_\text{max}$ in [0, 1]. Defaults to 1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `row` and `col`, of the variable's shape without its last axis or without the last but
    one; or `v`, of its shape. With `momentum` also `m`, of its shape.

    Row gradients: as if dense. All rows of `row`, `col` and `v` decay.

    Example:
    >>> optimizer = keras_tfopt.Adafactor(1e-2)

    Reference: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"
    (2018).

    Differences: `keras.optimizers.Adafactor` factors all matrices, and always scales steps by the
    variable. `optax.adafactor` takes learning rates as they are, as `relative_step=False` does,
    and factors the two longest axes. That of big_vision (Zhai et al., "Scaling Vision
    Transformers", 2022) has `relative_step=False` and `scale_parameter=False` with a `beta_2_cap`
    and a `momentum`; it multiplies the average by the learning rate, here the average is of steps.
    `torch.optim.Adafactor` scales steps by the variable before `weight_decay` shrinks it, here and
    in Keras it is scaled by what is left.
    """

    scope = "variable"

    learning_rate: Any = 0.001
    beta_2_decay: float = within(high=0, default=-0.8)
    epsilon_1: float = within(0, default=1e-30, left_open=True)
    epsilon_2: float = within(0, default=1e-3, left_open=True)
    clip_threshold: float = within(0, default=1.0, left_open=True)
    relative_step: bool = flag(default=True)
    scale_parameter: bool = flag(default=True)
    momentum: float | None = within(0, 1, default=None, right_open=True)
    min_dim_size_to_factor: int = integer(1, default=128)
    beta_2_cap: float = within(0, 1, default=1.0)

    def slots(self, like: Any) -> dict[str, Any]:
        slots = {"v": zeros(like, signed=False)}
        if len(like.shape) > 1 and min(like.shape[-2:]) >= self.min_dim_size_to_factor:
            slots = dict(zip(("row", "col"), factor_slots(like.shape), strict=True))
        return slots if self.momentum is None else {**slots, "m": zeros(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        rate = at_most(lr, 1 / ops.sqrt(step)) if self.relative_step else lr
        return {"rate": rate, "beta": at_most(1 - step**self.beta_2_decay, self.beta_2_cap)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        square = ops.square(g) + self.epsilon_1
        new: dict[str, Any] = {}
        if hasattr(s, "v"):
            v = t.beta * s.v + (1 - t.beta) * square
            u, new = g / ops.sqrt(v), {"v": v}
        else:
            row, col = factors(square, s.row, s.col, t.beta)
            u, new = divided(g, row, col), {"row": row, "col": col}
        u = u / at_least(rms(u) / self.clip_threshold, 1.0)
        scale = at_least(rms(x), self.epsilon_2) if self.scale_parameter else 1.0
        step = t.rate * scale * u
        if self.momentum is None:
            return x - step, new
        m = self.momentum * s.m + (1 - self.momentum) * step
        return x - m, {**new, "m": m}
