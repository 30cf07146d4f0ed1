from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, at_least, moments, over_root


@register
class StableAdamW(Moments):
    r"""Adam with smaller steps where gradients are larger than the second moment expects.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
    n = \sqrt{v / (1 - \beta_2^t)} + \epsilon \\
    x &\leftarrow x - \frac{\eta}{\max(1, \operatorname{rms}(g / n) / d)}
        \frac{m / (1 - \beta_1^t)}{n}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, and the root mean square is over a variable.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        clip_threshold: $d > 0$. Defaults to 1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> optimizer = keras_tfopt.StableAdamW(1e-3, weight_decay=0.2)

    Reference: Wortsman et al., "Stable and low-precision training for large-scale vision-language
    models" (2023).

    Differences: from the paper, whose ratio is of $g^2$ and $\max(v, \epsilon^2)$, none where
    $\epsilon$ is small. `clipping_threshold` of AdamW in timm is `clip_threshold` here. Keras has
    no such optimizer.
    """

    scope = "variable"
    elementwise = True

    clip_threshold: float = within(0, default=1.0, left_open=True)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        correction = ops.sqrt(1 - self.beta_2**step)
        return {"rate": lr / (1 - self.beta_1**step), "correction": correction}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if 0 in x.shape:
            return x, {}
        m, v = moments(self, g, s)
        root = ops.sqrt(v) / t.correction
        rms = ops.sqrt(t.mean(ops.square(over_root(g, root, self.epsilon))))
        excess = at_least(rms / self.clip_threshold, 1.0)
        step = t.rate / excess * over_root(m, root, self.epsilon)
        return x - step, {"m": m, "v": v}
