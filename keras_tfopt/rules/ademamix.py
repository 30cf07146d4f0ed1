from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.fields import integer, within
from keras_tfopt.rule import register, zeros
from keras_tfopt.rules.moments import Moments, at_most, moments, over_root


@register
class AdEMAMix(Moments):
    r"""Adam with a second, slow average of gradients, which remembers tens of thousands of steps.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    m_s &\leftarrow \beta_3 m_s + (1 - \beta_3) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \frac{m / (1 - \beta_1^t) + \alpha m_s}
        {\sqrt{v / (1 - \beta_2^t) + \epsilon_r} + \epsilon}
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1. With `warmup_steps` $= T$ and $u = \min(t/T, 1)$,
    the steps take $u \alpha$ instead of $\alpha$, and in that of $\beta_3$

    $$
    \exp \frac{\ln \beta_1 \ln \beta_3}{(1 - u) \ln \beta_3 + u \ln \beta_1}
    $$

    whose half-life grows in a straight line from that of $\beta_1$.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the fast average, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-8.
        beta_3: Decay of the slow average, in (0, 1). Defaults to 0.9999.
        alpha: Weight of the slow average, number >= 0. Defaults to 5.
        warmup_steps: $T$, integer >= 1, usually the number of all steps; or None, the default, for
            a constant $\alpha$ and $\beta_3$, with which early steps may be too large. For other
            curves, `alpha` and `beta_3` may be schedules.
        epsilon_root: $\epsilon_r \geq 0$, added inside of the root. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `m_slow`, the averages, and `v`, the second moment, of the variable's shape.

    Row gradients: as if dense. The moments of all rows decay and all rows move, touched or not.

    Example:
    >>> optimizer = keras_tfopt.AdEMAMix(1e-3, warmup_steps=10_000, weight_decay=0.1)

    Reference: Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older"
    (2024).

    Differences: `optax.contrib.ademamix` leaves the warm-up to schedules, which count the first
    step as 0. Keras has no such optimizer.
    """

    beta_3: float = within(0, 1, default=0.9999, left_open=True, right_open=True)
    alpha: float = within(0, default=5.0)
    warmup_steps: int | None = integer(1, default=None)
    epsilon_root: float = within(0, default=0.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {**super().slots(like), "m_slow": zeros(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        corrections = {"first": 1 - self.beta_1**step, "second": 1 - self.beta_2**step}
        if self.warmup_steps is None:
            slow = {"beta_3": self.beta_3, "alpha": self.alpha}
        else:
            slow = self._warmed_up(at_most(step / self.warmup_steps, 1.0))
        # Taken from one here: in float32, 1 - 0.9999 would be off by 2e-4 of itself.
        return {"lr": lr, **corrections, **slow, "fresh": 1 - slow["beta_3"]}

    def _warmed_up(self, u: Any) -> dict[str, Any]:
        start, end = (ops.log(beta * ops.ones_like(u)) for beta in (self.beta_1, self.beta_3))
        # Not with the product of both, which is infinite where beta_1 is zero.
        return {"alpha": u * self.alpha, "beta_3": ops.exp(end / ((1 - u) * end / start + u))}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        m_slow = t.beta_3 * s.m_slow + t.fresh * g
        root = ops.sqrt(v / t.second + self.epsilon_root)
        step = over_root(m / t.first + t.alpha * m_slow, root, self.epsilon)
        return x - t.lr * step, {"m": m, "v": v, "m_slow": m_slow}
