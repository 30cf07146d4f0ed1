from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, full, register, zeros
from keras_tfopt.rules.moments import at_least


@register
class COCOB(Rule):
    r"""Steps without a learning rate: each weight bets on the sign of its next gradient.

    $$
    \begin{aligned}
    L &\leftarrow \max(L, |g|), \qquad
    S \leftarrow S + g, \qquad
    G \leftarrow G + |g|, \qquad
    R \leftarrow \max(R - g d, 0) \\
    d' &= - \frac{S (R + L)}{L \max(G + L, \alpha L)} \\
    x &\leftarrow x + \eta (d' - d), \qquad d \leftarrow d'
    \end{aligned}
    $$

    weight by weight. $d$ is how far a weight has moved from where it started.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable: a factor for steps that need none.
            Defaults to 1.0.
        alpha: $\alpha \geq 0$: the larger, the slower the first steps. Defaults to 100.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `largest` ($L$), `gradients_sum` ($S$), `grad_norm_sum` ($G$), `reward` ($R$) and
    `tilde_w` ($d$), of the variable's shape. The first starts at 1e-8, the others at zero.

    Row gradients: only touched rows of the variable and of the slots change, which is the same as
    if dense: a gradient of zero changes nothing.

    Example:
    >>> model.compile(optimizer=keras_tfopt.COCOB())

    Reference: Orabona and Tommasi, "Training Deep Networks without Learning Rates Through Coin
    Betting" (2017).

    Differences: `tensorflow_addons.optimizers.COCOB` has no learning rate, a slot `lr` instead
    of `largest`, and refuses row gradients. Keras has no such optimizer.
    """

    sparse = "rows"

    learning_rate: Any = 1.0
    alpha: float = within(0, default=100.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            "largest": full(like, 1e-8, signed=False),
            "gradients_sum": zeros(like),
            "grad_norm_sum": zeros(like, signed=False),
            "reward": zeros(like, signed=False),
            "tilde_w": zeros(like),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        size = ops.abs(g)
        top = at_least(size, s.largest)
        total, sizes = s.gradients_sum + g, s.grad_norm_sum + size
        reward = s.reward - g * s.tilde_w
        # XLA would compute a maximum anew for each reader of this slot.
        reward = ops.where(reward < 0, ops.zeros_like(reward), reward)
        share = total / (top * at_least(sizes + top, self.alpha * top))
        moved = -share * (reward + top)
        new = {"largest": top, "gradients_sum": total, "grad_norm_sum": sizes, "reward": reward}
        return x + t.lr * (moved - s.tilde_w), {**new, "tilde_w": moved}
