from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, moments, over_root


@register
class NadamW(Moments):
    r"""Adam with Nesterov's look ahead, in the form that is used with decoupled weight decay.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    \hat m &= \frac{\beta_1 m}{1 - \beta_1^{t+1}} + \frac{(1 - \beta_1) g}{1 - \beta_1^t}, \qquad
    \hat v = \frac{v}{1 - \beta_2^t} \\
    x &\leftarrow x - \eta \left(\frac{\hat m}{\sqrt{\hat v + \epsilon_r} + \epsilon}
        + \lambda x\right)
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, and $\lambda$ is the option `weight_decay` of
    every optimizer.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        epsilon_root: $\epsilon_r \geq 0$, added inside of the root. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`. Without a `weight_decay`,
            nothing decays.

    Slots: `m` and `v`, the moments, of the variable's shape.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> model.compile(optimizer=keras_tfopt.NadamW(1e-3, weight_decay=0.01))

    Reference: Dozat, "Incorporating Nesterov Momentum into Adam" (2016), and Dahl et al.,
    "Benchmarking Neural Network Training Algorithms" (2023).

    Differences: `keras_tfopt.Nadam` has one correction for both terms of the look ahead, adds
    epsilon after the correction, and moves touched rows only. `keras.optimizers.Nadam` lets the
    momentum grow over the steps. `optax.nadamw` has a weight decay of 1e-4 by default.
    timm's `NAdamW` divides both terms by $1 - \beta_1^t$.
    """

    epsilon_root: float = within(0, default=0.0)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {
            "ahead": lr * self.beta_1 / (1 - self.beta_1 ** (step + 1)),
            "present": lr * (1 - self.beta_1) / (1 - self.beta_1**step),
            "correction": 1 - self.beta_2**step,
        }

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        root = ops.sqrt(v / t.correction + self.epsilon_root)
        step = over_root(t.ahead * m + t.present * g, root, self.epsilon)
        return x - step, {"m": m, "v": v}
