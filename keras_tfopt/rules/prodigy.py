from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import flag, integer, within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments


@register
class Prodigy(Moments):
    r"""Adam that estimates its own learning rate, as the distance to the minimum.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) d g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) d^2 g^2 \\
    r &\leftarrow \beta_3 r + a \frac{d}{d_0} \langle g, x_0 - x \rangle \\
    s &\leftarrow \beta_3 s + a \frac{d}{d_0} g \\
    \hat d &= c \, r / \lVert s \rVert_1, \qquad \bar d \leftarrow \max(\bar d, \hat d) \\
    d &\leftarrow \min(\bar d, \gamma d)
      \quad \text{or, while } d = d_0, \quad d \leftarrow \bar d \\
    x &\leftarrow x - a \frac{m}{\sqrt{v} + d \epsilon}
    \end{aligned}
    $$

    All variables are one vector x, $x_0$ where it starts, and $d$ the estimate of how far away the
    minimum is, $d_0$ at first. The rate is $a = \eta d$, with the estimate of the last step.

    Leave the learning rate at 1; a schedule that warms up and decays multiplies the estimate. As
    long as all gradients were zero, nothing changes.

    Args:
        learning_rate: $\eta \geq 0$, number, schedule or callable. Defaults to 1.
        beta_1: $\beta_1$ in [0, 1). Defaults to 0.9.
        beta_2: $\beta_2$ in [0, 1). Defaults to 0.999.
        epsilon: $\epsilon > 0$. Defaults to 1e-8.
        beta_3: $\beta_3$ in [0, 1), the decay of the sums that estimate the distance. Defaults to
            None, which is $\sqrt{\beta_2}$.
        d0: $d_0 > 0$, the first estimate. It should be too small. Defaults to 1e-6.
        d_coef: $c > 0$, which makes steps larger or smaller than the estimate says. Defaults to 1.
        growth_rate: $\gamma \geq 1$, by which the estimate may grow in a step. Defaults to None, no
            limit.
        use_bias_correction: Whether $a$ is multiplied by
            $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$, as in Adam. Defaults to False.
        safeguard_warmup: Whether $s$ adds $d^2 g / d_0$, without the learning rate, so that a long
            warm-up does not make the estimate too large. Defaults to False.
        slice_p: Integer $p \geq 1$. The estimate, that is $r$ and $s$, sees the first entry of each
            flattened variable and every p-th after it; steps move all. It saves memory: $s$ and
            $x_0$ have $\lceil n / p \rceil$ values for a variable of $n$, so that there are
            $2 + 2 / p$ values for each weight in place of 4. Its authors suggest about 11. Defaults
            to 1, all entries.
        **base: Options of every optimizer, see `keras_tfopt.Rule`. `weight_decay` shrinks variables
            by $a$ times its value.

    Slots: of all variables together (`optimizer.slot(None, name)`), laid out in the order in which
    the optimizer was built: `m` and `v`, with an entry for each number in the variables, and `s`
    and `x0`, with an entry for every `slice_p`-th. Four are numbers: `d` (the estimate), `d_max`
    ($\bar d$), `d_numerator` ($r$) and `steps`, those taken since a gradient was not zero.

    Row gradients: as if dense. `slice_p` counts entries of the whole table, so that touched rows
    may have none that the estimate sees.

    Example:
    >>> model.compile(optimizer=keras_tfopt.Prodigy(weight_decay=0.01))

    Reference: Mishchenko and Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner"
    (2023).

    Differences: from `prodigyopt.Prodigy`, variables without a gradient take part with zeros; where
    `beta_1` is 0, its step takes the new estimate of $d$, ours the old one as for every other
    `beta_1`. It leaves steps with a learning rate of 0 out; here these count, and moments take
    their gradients. `optax.contrib.prodigy` always corrects the bias, and never lets the estimate
    fall. Keras has no Prodigy.
    """

    scope = "model"

    learning_rate: Any = 1.0
    epsilon: float = within(0, default=1e-8, left_open=True)
    beta_3: float | None = within(0, 1, default=None, right_open=True)
    d0: float = within(0, default=1e-6, left_open=True, fixed=True)
    d_coef: float = within(0, default=1.0, left_open=True)
    growth_rate: float | None = within(1, default=None)
    use_bias_correction: bool = flag(default=False)
    safeguard_warmup: bool = flag(default=False)
    slice_p: int = integer(1, default=1)

    def slots(self, like: Any) -> dict[str, Slot]:
        estimates = {name: Slot((), self.d0) for name in ("d", "d_max")}
        sums = {name: Slot(()) for name in ("d_numerator", "steps")}
        vectors = {name: Slot((None,)) for name in ("m", "v")}
        some = {
            "s": Slot((None,), every=self.slice_p),
            "x0": Slot((None,), "variable", every=self.slice_p),
        }
        return {**vectors, **some, **estimates, **sums}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr}

    def sums(self, g: Any, x: Any, s: Any, t: Any) -> dict[str, Any]:
        return {
            "product": ops.sum(t.sliced_g * (s.x0 - t.sliced_x)),
            "length": ops.sum(ops.abs(self._sum(s, t))),
        }

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        moves = t.length > 0
        rate = self._rate(s, t)
        numerator = self._decay() * s.d_numerator + s.d / self.d0 * rate * t.product
        found = self.d_coef * numerator / ops.where(moves, t.length, ops.ones_like(t.length))
        largest = ops.where(found > s.d_max, found, s.d_max)
        d = largest
        if self.growth_rate is not None:
            is_first = ops.equal(s.d, self.d0 * ops.ones_like(s.d))
            grown = self.growth_rate * ops.where(is_first, largest, s.d)
            d = ops.where(grown < largest, grown, largest)
        new = {"d": d, "d_max": largest, "d_numerator": numerator, "steps": s.steps + 1}
        new = {name: ops.where(moves, value, getattr(s, name)) for name, value in new.items()}
        # With a factor of the learning rate, as the decay has that already.
        decay = ops.where(moves, s.d * self._correction(s), ops.zeros_like(s.d))
        known = {"rate": rate, "last_d": s.d, "epsilon": new["d"] * self.epsilon}
        return {**known, "decay_factor": decay}, new

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta_1 * s.m + (1 - self.beta_1) * t.last_d * g
        v = self.beta_2 * s.v + (1 - self.beta_2) * ops.square(t.last_d * g)
        new = {"m": m, "v": v, "s": self._sum(s, t)}
        return x - t.rate * m / (ops.sqrt(v) + t.epsilon), new

    def _decay(self) -> Any:
        return self.beta_2**0.5 if self.beta_3 is None else self.beta_3

    def _correction(self, s: Any) -> Any:
        if not self.use_bias_correction:
            return ops.ones_like(s.d)
        step = s.steps + 1
        return ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)

    def _rate(self, s: Any, t: Any) -> Any:
        return s.d * t.lr * self._correction(s)

    def _sum(self, s: Any, t: Any) -> Any:
        weight = s.d if self.safeguard_warmup else self._rate(s, t)
        return self._decay() * s.s + s.d / self.d0 * weight * t.sliced_g
