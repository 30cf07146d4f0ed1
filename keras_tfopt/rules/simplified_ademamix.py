from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, over_root


@register
class SimplifiedAdEMAMix(Moments):
    r"""Adam with a sum of gradients that forgets slowly, to which the present gradient is added.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{m + \alpha g}{\sqrt{v / (1 - \beta_2^t) + \epsilon_r} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. The fast average of AdEMAMix is the gradient
    itself here, so that one slot is saved.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 1e-5: steps are about
            $1 / (1 - \beta_1) + \alpha$ times as large as Adam's at the same learning rate.
        beta_1: Decay of the sum, in [0, 1). Defaults to 0.99.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.95.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        alpha: Weight of the present gradient, number >= 0. Defaults to 0. Its best value falls as
            the batch grows: the authors found about 100 at 32,000 tokens, and nearly 0 at a
            million.
        epsilon_root: $\epsilon_r \geq 0$, added inside of the root. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the sum, and `v`, the second moment, of the variable's shape.

    Row gradients: as if dense. The slots of all rows decay and all rows move, touched or not.

    Example:
    >>> optimizer = keras_tfopt.SimplifiedAdEMAMix(1e-5, alpha=20.0, weight_decay=0.1)

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and
    Accelerated SGD Variants" (2025).

    Differences: `optax.contrib.simplified_ademamix` has no default of the learning rate. Keras has
    no such optimizer.
    """

    learning_rate: Any = 1e-5
    beta_1 = 0.99
    beta_2 = 0.95
    alpha: float = within(0, default=0.0)
    epsilon_root: float = within(0, default=0.0)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "second": 1 - self.beta_2**step}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + g
        v = self.beta_2 * s.v + (1 - self.beta_2) * ops.square(g)
        root = ops.sqrt(v / t.second + self.epsilon_root)
        return x - t.lr * over_root(m + self.alpha * g, root, self.epsilon), {"m": m, "v": v}
