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

    Slots: `z` and `x`, of the variable's shape; `weight_sum`, which is $W$, and `largest_rate`, the
    largest $\eta$, one number for each variable.

    Row gradients: as if dense.

    Each step computes y from z and x. What else changes y is lost in the next step: `set_weights`,
    `load_weights` of weights alone, other wrappers around, and constraints, which z does not obey.
    After such a change make a new optimizer; where there are constraints, use
    `keras_tfopt.ScheduleFree`.

    Example:

    >>> rate = keras_tfopt.schedules.WarmUp(1.0, steps=500)
    >>> model.compile(optimizer=keras_tfopt.ScheduleFreeSGD(rate), loss="mse")
    >>> model.fit(x, y, callbacks=[keras_tfopt.callbacks.EvaluateWithAverages()])

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    Differences: the authors' `SGDScheduleFree` gives the same numbers. It does not keep x, but
    computes it from y and z to evaluate. `keras_tfopt.ScheduleFree` does the same around any
    optimizer, with row gradients of that. Keras has no such optimizer.
    """

    scope = "variable"
    elementwise = True
    ignores_changes = True

    learning_rate: Any = 1.0
    momentum: float = within(0, 1, default=0.9, right_open=True)
    weight_decay: float = within(0, default=0.0)
    r: float = within(0, default=0.0)
    weight_lr_power: float = within(0, default=2.0)

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_excluded": self.is_excluded(like)}

    def average(self, x: Any, s: Any) -> Any:
        return s.x

    def slots(self, like: Any) -> dict[str, Slot]:
        return averages(like)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "growth": step**self.r}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return moved(self, g, self.momentum, x, s, t)


def averages(like: Any) -> dict[str, Slot]:
    """Return the slots of weights before and in the average, and of what weighs them."""
    weights = {name: Slot(like.shape, "variable") for name in ("z", "x")}
    numbers = {name: Slot((), by_row=False) for name in ("weight_sum", "largest_rate")}
    return {**weights, **numbers}


def moved(
    rule: Any, direction: Any, momentum: Any, x: Any, s: Any, t: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the variable, which is y, and slots after a step of z along a direction."""
    decay = 0.0 if t.is_excluded else rule.weight_decay
    z = s.z - t.lr * (direction + decay * x)
    rate = ops.where(t.lr > s.largest_rate, t.lr, s.largest_rate)
    weight = t.growth * rate**rule.weight_lr_power
    total = s.weight_sum + weight
    mean = s.x + quotient(weight, total) * (z - s.x)
    y = mean + (1 - momentum) * (z - mean)
    return y, {"z": z, "x": mean, "weight_sum": total, "largest_rate": rate}
