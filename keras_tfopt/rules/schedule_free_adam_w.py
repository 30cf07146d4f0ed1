from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.moments import over_root
from keras_tfopt.rules.schedule_free_sgd import averaged, averaging, moved


@register
class ScheduleFreeAdamW(Rule):
    r"""AdamW with an average of weights instead of a learning rate that falls to zero.

    Gradients g are taken at y, which the variables hold in training:

    $$
    \begin{aligned}
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    z &\leftarrow z - \eta
        \left(\frac{g}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda y\right) \\
    w &= t^r (\max_{s \leq t} \eta_s)^p, \qquad W \leftarrow W + w \\
    x &\leftarrow x + \frac{w}{W} (z - x) \\
    y &\leftarrow \beta_1 x + (1 - \beta_1) z
    \end{aligned}
    $$

    where t counts the optimizer's steps from 1. x, y and z start at the variables. x is what to
    evaluate and to keep: `keras_tfopt.averaged`, `keras_tfopt.callbacks.EvaluateWithAverages` and
    `keras_tfopt.callbacks.AveragesCheckpoint` put it instead of y. Statistics of
    `BatchNormalization` are those at y; `keras_tfopt.callbacks.RefreshBatchNormalization` computes
    those at x.

    Args:
        learning_rate: $\eta \geq 0$: a number, `keras_tfopt.schedules.WarmUp` of one, or any other
            schedule or callable. It need not fall. Defaults to 0.0025.
        beta_1: $\beta_1$ in [0, 1), instead of the decay of Adam's momentum. Defaults to 0.9;
            for long trainings 0.95 or 0.98.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: $\epsilon \geq 0$. Defaults to 1e-8.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 0.
        r: Power of the number of the step in the weights, >= 0. Defaults to 0.
        weight_lr_power: $p \geq 0$. Defaults to 2: steps of a warm-up count little.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `v` and `lead`, of the variable's shape; `lead` is z less the x before the step. `share`,
    which is $w / W$, `last_momentum`, which is $\beta_1$, `weight_sum`, which is $W$, and
    `largest_rate`, the largest $\eta$, one number for each variable. z and x are not kept:
    $x = y - (1 - \beta_1) (1 - w / W) \cdot \text{lead}$.

    Row gradients: as if dense.

    What else changes y, as `set_weights` and wrappers around do, moves x and z as far. With a
    constraint, or `max_norm` in groups, use `keras_tfopt.ScheduleFree`: z would not obey. Variables
    in half precision are rounded in each step; `master_weights=True` keeps what is lost.

    Example:

    >>> rate = keras_tfopt.schedules.WarmUp(0.0025, steps=500)
    >>> adam_w = keras_tfopt.ScheduleFreeAdamW(rate, weight_decay=0.01)
    >>> model.compile(optimizer=adam_w, loss="mse")
    >>> model.fit(x, y, callbacks=[keras_tfopt.callbacks.EvaluateWithAverages()])

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    Differences: the authors' `AdamWScheduleFree` gives the same numbers if all variables have
    gradients in all steps: it has one W for all. Its `warmup_steps=n` is
    `WarmUp(rate, n - 1, start=rate / n)`. It keeps z, and computes x from y and z.
    `keras.optimizers.ScheduleFreeAdamW` evaluates at y. `keras_tfopt.ScheduleFree` does the same
    around any optimizer, with row gradients of that, and can decay at z.
    """

    scope = "variable"
    elementwise = True

    learning_rate: Any = 0.0025
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.999, right_open=True)
    epsilon: float = within(0, default=1e-8)
    weight_decay: float = within(0, default=0.0)
    r: float = within(0, default=0.0)
    weight_lr_power: float = within(0, default=2.0)

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def average(self, x: Any, s: Any) -> Any:
        return averaged(x, s)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"v": zeros(like, signed=False), **averaging(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "growth": step**self.r, "correction": 1 - self.beta_2**step}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        v = self.beta_2 * s.v + (1 - self.beta_2) * ops.square(g)
        direction = over_root(g, ops.sqrt(v / t.correction), self.epsilon)
        y, new = moved(self, direction, self.beta_1, x, s, t)
        return y, {"v": v, **new}
