from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag
from keras_tfopt.rule import register
from keras_tfopt.rules.rectified_adam import RectifiedAdam


@register
class AdaBelief(RectifiedAdam):
    r"""Adam that divides by how far gradients are from what their average predicts.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2)(g - m)^2 + \epsilon \\
    u &= \frac{m}{1 - \beta_1^t} \frac{r}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} \\
    x &\leftarrow x - \eta (u + \lambda x)
    \end{aligned}
    $$

    with the new $m$ in the second line, where $t$ counts the optimizer's steps from 1. With
    `rectify`, $r$ and the first steps, which are not divided, are those of
    `keras_tfopt.RectifiedAdam`; without, $r = 1$ in all steps. With `amsgrad`, the largest $v$ so
    far stands in its place.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. It is added to $v$ in each step
            and to the root. Defaults to 1e-14.
        amsgrad: Whether the denominator never shrinks. Defaults to False.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 0.
        sma_threshold: Number > 4 from which a step is divided. Defaults to 5.
        total_steps: Integer >= 0. If it is not 0, the learning rate is multiplied by a rise from 0
            in a line, and falls in another to `min_lr` at this step. Defaults to 0.
        warmup_proportion: Share of `total_steps` in which it rises, in [0, 1]. Defaults to 0.1.
        min_lr: Number >= 0. Defaults to 0.
        rectify: Whether the first steps are shorter, as in `keras_tfopt.RectifiedAdam`. Defaults to
            True.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, the average gradient, and `v`, the average squared surprise, of the variable's
    shape. With `amsgrad` also `vhat`, the largest `v` so far.

    Row gradients: `m` and `v` decay in all rows; a surprise is seen, epsilon is added, and the
    variable moves, in touched rows only.

    Example:
    >>> model.compile(optimizer=keras_tfopt.AdaBelief(1e-3, rectify=False))

    Reference: Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
    Gradients" (2020).

    Differences: none from `tensorflow_addons.optimizers.AdaBelief`, except for the order of
    arguments; its rectification is less accurate in the first steps. A threshold of 4 or less is
    refused. Keras has no such optimizer.
    """

    epsilon = 1e-14
    rectify: bool = flag(default=True)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        always = {} if self.rectify else {"is_rectified": 1.0, "rectification": 1.0}
        return {**super().scalars(lr, step), **always}

    def averages(self, g: Any, s: Any, t: Any) -> tuple[Any, Any]:
        """Return the averages of the gradient and of its squared surprise."""
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        seen = (1 - self.beta_2) * ops.square(g - m) + self.epsilon
        if t.touched is not None:
            seen = ops.where(t.touched, seen, ops.zeros_like(seen))
        return m, self.beta_2 * s.v + seen
