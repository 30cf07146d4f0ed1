from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, corrected_rate


@register
class DAdaptAdam(Moments):
    r"""Adam with D-Adaptation: it estimates its own learning rate, which never falls.

    $$
    \begin{aligned}
    r &\leftarrow q r + (1 - q) a \langle g, s / (\sqrt{v} + \epsilon) \rangle \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) a g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    s &\leftarrow q s + (1 - q) a g \\
    d &\leftarrow \max\left(d, \frac{r}{(1 - q) \lVert s \rVert_1}\right) \\
    x &\leftarrow x - \frac{m}{\sqrt{v} + \epsilon}
    \end{aligned}
    $$

    All variables are one vector x, and $d$ is the estimate of how far away the minimum is, $d_0$ at
    first. The rate is $a = \eta d \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$, with the estimate of the
    last step, and $q = \sqrt{\beta_2}$. The first line has the old $s$ and $v$, and $t$ counts the
    optimizer's steps from 1.

    Leave the learning rate at 1; a schedule multiplies the estimate. `keras_tfopt.Prodigy` is the
    successor, whose estimate grows faster.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 1.
        beta_1: $\beta_1$ in [0, 1). Defaults to 0.9.
        beta_2: $\beta_2$ in [0, 1). Defaults to 0.999.
        epsilon: $\epsilon > 0$. Defaults to 1e-8.
        d0: $d_0 > 0$, the first estimate. It should be too small. Defaults to 1e-6.
        **base: Options of every optimizer, see `keras_tfopt.Rule`. `weight_decay` shrinks variables
            by $a$ times its value.

    Slots: of all variables together (`optimizer.slot(None, name)`), laid out in the order in which
    the optimizer was built: `m`, `v` and `s`, with an entry for each number in the variables, and
    the numbers `d` (the estimate) and `d_numerator` ($r$).

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.DAdaptAdam(weight_decay=0.01))

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation" (2023).

    Differences: from `optax.contrib.dadapt_adamw`, whose estimate becomes NaN where all gradients
    so far were zero; here it stays. The authors' `dadaptation` leaves steps with a learning rate of
    0 out. Keras has no D-Adaptation.
    """

    scope = "model"

    learning_rate: Any = 1.0
    epsilon: float = within(0, default=1e-8, left_open=True)
    d0: float = within(0, default=1e-6, left_open=True, fixed=True)

    def slots(self, like: Any) -> dict[str, Slot]:
        vectors = {name: Slot((None,)) for name in ("m", "v", "s")}
        return {**vectors, "d": Slot((), self.d0), "d_numerator": Slot(())}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        correction = corrected_rate(self, ops.ones_like(lr), step)
        return {"rate": lr * correction, "correction": correction}

    def sums(self, g: Any, x: Any, s: Any, t: Any) -> dict[str, Any]:
        return {
            "product": ops.sum(g * s.s / (ops.sqrt(s.v) + self.epsilon)),
            "length": ops.sum(ops.abs(self._sum(g, s, s.d * t.rate))),
        }

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        q = self._decay()
        rate = s.d * t.rate
        numerator = q * s.d_numerator + (1 - q) * rate * t.product
        norm = ops.where(t.length > 0, t.length, ops.ones_like(t.length))
        found = numerator / ((1 - q) * norm)
        new = {"d": ops.where(found > s.d, found, s.d), "d_numerator": numerator}
        # With a factor of the learning rate, as the decay has that already.
        return {"own_rate": rate, "decay_factor": s.d * t.correction}, new

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + (1 - self.beta_1) * t.own_rate * g
        v = self.beta_2 * s.v + (1 - self.beta_2) * ops.square(g)
        new = {"m": m, "v": v, "s": self._sum(g, s, t.own_rate)}
        return x - m / (ops.sqrt(v) + self.epsilon), new

    def _decay(self) -> Any:
        return self.beta_2**0.5

    def _sum(self, g: Any, s: Any, rate: Any) -> Any:
        return self._decay() * s.s + (1 - self._decay()) * rate * g
