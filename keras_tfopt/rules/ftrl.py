from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, full, register, zeros
from keras_tfopt.rules.shrinkage import soft_threshold


@register
class Ftrl(Rule):
    r"""Follow the regularized leader: L1 penalties give weights that are exactly zero.

    $$
    \begin{aligned}
    a' &= a + g^2 \\
    z &\leftarrow z + g + 2 \lambda_s x - \frac{a'^{-p} - a^{-p}}{\eta} x \\
    q &= \frac{a'^{-p}}{\eta} + 2 \lambda_2 \\
    x &\leftarrow -\frac{S_{\lambda_1}(z)}{q}, \qquad a \leftarrow a'
    \end{aligned}
    $$

    with $S_\lambda(z) = \operatorname{sign}(z) \max(|z| - \lambda, 0)$, the power $p$ of the
    learning rate and the penalties $\lambda_1$, $\lambda_2$ and $\lambda_s$ (shrinkage).

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        learning_rate_power: $p$, number <= 0; 0 keeps the rate constant. Defaults to -0.5.
        initial_accumulator_value: Number >= 0 at which $a$ starts. Defaults to 0.1.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$, a penalty on the sum of all steps. Defaults
            to 0.
        l2_shrinkage_regularization_strength: $\lambda_s \geq 0$, a penalty that acts like one in
            the loss, but does not enter $a$. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accum`, the sum $a$ of squared gradients, and `linear`, $z$; of the variable's shape.

    Row gradients: only touched rows of the variable and of the slots change.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Ftrl(0.1, l1_regularization_strength=1e-3))

    Reference: McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013).

    Differences: as in `tf.train.FtrlOptimizer`, which has no default learning rate, a weight is
    computed anew from its slots, so one whose gradient has always been zero is zero from its first
    step on, whatever it started at. Two divisions by zero are not done here: with a learning rate
    of zero nothing changes, and with $q = 0$ (no gradient yet, $a = 0$, no penalty) the weight is
    zero. `keras.optimizers.Ftrl` has the same rule with a further `beta`.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    learning_rate_power: float = within(-math.inf, 0, default=-0.5)
    initial_accumulator_value: float = within(0, default=0.1, fixed=True)
    l1_regularization_strength: float = within(0, default=0.0)
    l2_regularization_strength: float = within(0, default=0.0)
    l2_shrinkage_regularization_strength: float = within(0, default=0.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            "accum": full(like, self.initial_accumulator_value, signed=False),
            "linear": zeros(like),
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        rests = t.lr <= 0
        accum = s.accum + ops.square(g)
        linear = s.linear + g + 2 * self.l2_shrinkage_regularization_strength * x
        linear = linear - (self._power(accum) - self._power(s.accum)) / t.lr * x
        accum, linear = ops.where(rests, s.accum, accum), ops.where(rests, s.linear, linear)
        # Computed anew, the power needs no memory of its own where XLA compiles.
        q = self._power(accum) / t.lr + 2 * self.l2_regularization_strength
        new = soft_threshold(-linear, self.l1_regularization_strength) / q
        new = ops.where(q <= 0, ops.zeros_like(new), new)
        return ops.where(rests, x, new), {"accum": accum, "linear": linear}

    def _power(self, a: Any) -> Any:
        p = self.learning_rate_power
        return ops.sqrt(a) if isinstance(p, float) and p == -0.5 else a**-p
