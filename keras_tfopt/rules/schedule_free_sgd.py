from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, register
from keras_tfopt.rules.moments import quotient


@register
class ScheduleFreeSGD(Rule):
    r"""SGD with an average of weights instead of a learning rate that falls to zero.

    Gradients g are taken at y, which the variables hold in training:

    $$
    \begin{aligned}
    z &\leftarrow z - \eta (g + \lambda y) \\
    w &= t^r (\max_{s \leq t} \eta_s)^p, \qquad W \leftarrow W + w \\
    x &\leftarrow x + \frac{w}{W} (z - x) \\
    y &\leftarrow \beta x + (1 - \beta) z
    \end{aligned}
    $$

    where t counts the optimizer's steps from 1. All three start at the variables. x is what to
    evaluate and to keep: `keras_tfopt.averaged`, `keras_tfopt.callbacks.EvaluateWithAverages` and
    `keras_tfopt.callbacks.AveragesCheckpoint` put it instead of y. Statistics of
    `BatchNormalization` are those at y; `keras_tfopt.callbacks.RefreshBatchNormalization` computes
    those at x.

    Args:
        learning_rate: $\eta \geq 0$: a number, `keras_tfopt.schedules.WarmUp` of one, or any other
            schedule or callable. It need not fall. Defaults to 1.
        momentum: $\beta$ in [0, 1). Defaults to 0.9.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 0.
        r: Power of the number of the step in the weights, >= 0. Defaults to 0.
        weight_lr_power: $p \geq 0$. Defaults to 2: steps of a warm-up count little.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `lead`, of the variable's shape, which is z less the x before the step; `share`, which is
    $w / W$, `last_momentum`, which is $\beta$, `weight_sum`, which is $W$, and `largest_rate`, the
    largest $\eta$, one number for each variable. z and x are not kept:
    $x = y - (1 - \beta) (1 - w / W) \cdot \text{lead}$.

    Row gradients: as if dense.

    What else changes y, as `set_weights` and wrappers around do, moves x and z as far. With a
    constraint, or `max_norm` in groups, use `keras_tfopt.ScheduleFree`: z would not obey. Variables
    in half precision are rounded in each step; `master_weights=True` keeps what is lost.

    Example:

    >>> rate = keras_tfopt.schedules.WarmUp(1.0, steps=500)
    >>> model.compile(optimizer=keras_tfopt.ScheduleFreeSGD(rate), loss="mse")
    >>> model.fit(x, y, callbacks=[keras_tfopt.callbacks.EvaluateWithAverages()])

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    Differences: the authors' `SGDScheduleFree` gives the same numbers if all variables have
    gradients in all steps: it has one W for all. Its `warmup_steps=n` is
    `WarmUp(rate, n - 1, start=rate / n)`. It keeps z, and computes x from y and z.
    `keras_tfopt.ScheduleFree` does the same around any optimizer, with row gradients of that. Keras
    has no such optimizer.
    """

    scope = "variable"
    elementwise = True

    learning_rate: Any = 1.0
    momentum: float = within(0, 1, default=0.9, right_open=True)
    weight_decay: float = within(0, default=0.0)
    r: float = within(0, default=0.0)
    weight_lr_power: float = within(0, default=2.0)

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def average(self, x: Any, s: Any) -> Any:
        return averaged(x, s)

    def slots(self, like: Any) -> dict[str, Slot]:
        return averaging(like)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "growth": step**self.r}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return moved(self, g, self.momentum, x, s, t)


def averaging(like: Any) -> dict[str, Slot]:
    """Return the slots from which the averages follow.

    They have no z and x, so that a change of y moves both of these, and a step reads and writes an
    array less. float32 alone is exact enough for a sum of all steps.
    """
    names = ("share", "last_momentum", "weight_sum", "largest_rate")
    numbers = {name: Slot((), by_row=False) for name in names}
    return {"lead": Slot(like.shape, dtype=like.dtype), **numbers}


def averaged(y: Any, s: Any) -> Any:
    """Return x, the averaged weights."""
    return y - (1 - s.last_momentum) * (1 - s.share) * s.lead


def moved(
    rule: Any, direction: Any, momentum: Any, y: Any, s: Any, t: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the variable, which is y, and slots after a step of z along a direction."""
    decay = 0.0 if t.is_excluded else rule.weight_decay
    step = t.lr * (direction + decay * y)
    rate = ops.where(t.lr > s.largest_rate, t.lr, s.largest_rate)
    weight = t.growth * rate**rule.weight_lr_power
    total = s.weight_sum + weight
    share = quotient(weight, total)
    lead = (1 - s.share) * s.lead - step
    # The equations of the docstring, with x and z expressed by y, `lead` and the old momentum.
    along = momentum * share + (s.last_momentum - momentum)
    y = y + (along * lead - (1 - s.last_momentum) * step)
    numbers = {"share": share, "last_momentum": momentum * ops.ones_like(share)}
    return y, {"lead": lead, **numbers, "weight_sum": total, "largest_rate": rate}
