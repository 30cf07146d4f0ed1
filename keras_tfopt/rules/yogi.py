from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import one_of
from keras_tfopt.fields import field, within
from keras_tfopt.rule import full, register, zeros
from keras_tfopt.rules.moments import Moments
from keras_tfopt.rules.shrinkage import proximal


@register
class Yogi(Moments):
    r"""Adam whose denominator grows and shrinks in steps of the size of the squared gradient.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow v + (1 - \beta_2) \operatorname{sign}(g^2 - v) g^2 \\
    r &= \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \frac{1}{\sqrt{v} + \epsilon}, \qquad
    w = x - r m \\
    x &\leftarrow \frac{\operatorname{sign}(w) \max(|w| - r \lambda_1, 0)}{1 + r \lambda_2}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With the activation "tanh",
    $\tanh(10 (g^2 - v))$ takes the place of the sign. The penalties act after the step, as in
    `keras_tfopt.ProximalAdagrad`.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.01.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 0.001.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$. Defaults to 0.
        initial_accumulator_value: Number >= 0 at which $v$ starts. Defaults to 1e-6.
        activation: "sign" or "tanh". Defaults to "sign".
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape; no `m` with a `beta_1` of 0.

    Row gradients: `m` decays in all rows; `v` and the variable change in touched rows only.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Yogi(0.01))

    Reference: Zaheer et al., "Adaptive Methods for Nonconvex Optimization" (2018).

    Differences: none in the numbers from `tensorflow_addons.optimizers.Yogi`, which calls the
    decays `beta1` and `beta2`. With an epsilon and an initial value of 0, entries that have never
    had a gradient stay where they are; the original makes them NaN. Keras has no such optimizer.
    """

    sparse = "move_rows"

    learning_rate: Any = 0.01
    epsilon = 1e-3
    l1_regularization_strength: float = within(0, default=0.0)
    l2_regularization_strength: float = within(0, default=0.0)
    initial_accumulator_value: float = within(0, default=1e-6, fixed=True)
    activation: str = field(one_of("sign", "tanh"), default="sign")

    def slots(self, like: Any) -> dict[str, Any]:
        is_zero = isinstance(self.beta_1, float) and self.beta_1 == 0
        v = {"v": full(like, self.initial_accumulator_value, signed=False)}
        return v if is_zero else {"m": zeros(like), **v}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        square = ops.square(g)
        above = square - s.v
        # This is tanh(10 above); ops.tanh gives float32 for float64 on JAX.
        growth = ops.sign(above) if self.activation == "sign" else 2 * ops.sigmoid(20 * above) - 1
        v = s.v + (1 - self.beta_2) * growth * square
        m, new = g, {"v": v}
        if hasattr(s, "m"):
            m = self.beta_1 * s.m + (1 - self.beta_1) * g
            new = {"m": m, "v": v}
        size = ops.sqrt(v) + self.epsilon
        rate = ops.where(size > 0, t.rate / size, ops.zeros_like(size))
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        return proximal(x - rate * m, rate, l1, l2), new
