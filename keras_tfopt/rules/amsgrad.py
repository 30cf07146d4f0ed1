from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.moments import largest, moments


@register
class AMSGrad(Rule):
    r"""Adam without bias correction, whose denominator never shrinks.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    \hat v &\leftarrow \max(\hat v, v) \\
    x &\leftarrow x - \eta_t \frac{m}{\sqrt{\hat v} + \epsilon}
    \end{aligned}
    $$

    with $\eta_t = \eta$, or $\eta / \sqrt t$ with `decay`, where $t$ counts the optimizer's steps
    from 1.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        decay: Whether the learning rate falls with the root of the step. Defaults to False.
        beta_1: Decay of the first moment, in [0, 1]. Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1]. Defaults to 0.99.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, and `v_hat`, the largest second moment so far, of the
    variable's shape.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> model.compile(optimizer=keras_tfopt.AMSGrad(1e-3, decay=True))

    Reference: Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond" (2018), algorithm 2.

    Differences: the original is `AMSGradOptimizer` of RETURNN. With its epsilon of 0, an element
    whose gradient has been zero since the start is 0/0 there and becomes NaN; here it stays where
    it is. The original refuses row gradients. `keras.optimizers.Adam(amsgrad=True)` takes the same
    largest second moment, but corrects the bias, so its first steps are of another size; its
    defaults are a `beta_2` of 0.999 and an epsilon of 1e-7, and it has no `decay`.
    """

    learning_rate: Any = 0.001
    decay: bool = flag(default=False)
    beta_1: float = within(0, 1, default=0.9)
    beta_2: float = within(0, 1, default=0.99)
    epsilon: float = within(0, default=0.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            "m": zeros(like),
            "v": zeros(like, signed=False),
            "v_hat": zeros(like, signed=False),
        }

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"rate": lr / ops.sqrt(step) if self.decay else lr}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        v_hat = largest(s.v_hat, v)
        size = ops.sqrt(v_hat) + self.epsilon
        step = m / ops.where(ops.equal(size, 0), ops.ones_like(size), size)
        return x - t.rate * step, {"m": m, "v": v, "v_hat": v_hat}
