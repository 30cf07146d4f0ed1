from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.nesting import check_one
from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules import ScheduleFreeAdamW, ScheduleFreeSGD
from keras_tfopt.wrapper import Wrapper


def check_scheduled(inner: Any) -> None:
    """Raise an error for an optimizer that takes an average instead of a schedule already."""
    # Older versions of Keras have none.
    of_keras = getattr(keras.optimizers, "ScheduleFreeAdamW", ScheduleFree)
    for part in parts(inner):
        if isinstance(part, (ScheduleFree, ScheduleFreeAdamW, ScheduleFreeSGD, of_keras)):
            raise ValueError(
                "ScheduleFree needs an inner optimizer whose variables are its own iterates: "
                f"{type(part).__name__} keeps them and their average in slots. Use that alone, or "
                f"put ScheduleFree around another optimizer. Received: {inner!r}"
            )


@register
class ScheduleFree(Wrapper):
    r"""Takes an average of weights instead of a learning rate that falls to zero.

    Gradients are taken at y, which the variables hold in training. The inner optimizer moves z, and
    x is an average of z, to evaluate and to keep:

    $$
    \begin{aligned}
    z &\leftarrow \text{the inner step from } z - \eta \lambda y \\
    w &= t^r (\max_{s \leq t} \eta_s)^p, \qquad W \leftarrow W + w \\
    x &\leftarrow x + \frac{w}{W} (z - x) \\
    y &\leftarrow \beta x + (1 - \beta) z
    \end{aligned}
    $$

    with the inner optimizer's learning rate $\eta$ and the number $t$ of the step, 1 at the first.
    All three start at the variables.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. $\beta$ takes the place
            of its momentum, which is best switched off. Its learning rate is constant, after a
            warm-up where one is needed: `keras_tfopt.schedules.WarmUp`. It must not be
            schedule-free itself.
        momentum: $\beta$ in [0, 1). Defaults to 0.9.
        weight_decay_at_y: $\lambda \geq 0$, for all variables. Defaults to 0. A `weight_decay` of
            the inner optimizer acts at z; groups and `exclude_from_weight_decay` are about that.
        r: Power of the number of the step in the weights, >= 0. Defaults to 0.
        weight_lr_power: $p \geq 0$. Defaults to 2: steps of a warm-up count little.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `z` and `x`, of the variable's shape; float32 for half-precision variables. `weight_sum`,
    which is $W$, and `largest_rate`, the largest $\eta$, one number for each variable.

    Row gradients: passed on; x and y move in all rows in which they differ from z.

    Each step computes y from z and x. What else changes y is lost in the next step: `set_weights`,
    `load_weights` of weights alone, and wrappers around this one. After such a change make a new
    optimizer. Constraints, and wrappers inside, act on z, and so on x.

    `keras_tfopt.averaged`, `keras_tfopt.callbacks.EvaluateWithAverages` and
    `keras_tfopt.callbacks.AveragesCheckpoint` put x instead of y. Statistics of
    `BatchNormalization` are those at y; `keras_tfopt.callbacks.RefreshBatchNormalization` computes
    those at x.

    Example:

    >>> lazy_adam = keras_tfopt.LazyAdam(0.0025, beta_1=0)
    >>> model.compile(optimizer=keras_tfopt.ScheduleFree(lazy_adam), loss="mse")
    >>> model.fit(x, y, callbacks=[keras_tfopt.callbacks.EvaluateWithAverages()])

    Reference: Defazio et al., "The Road Less Scheduled" (2024).

    Differences: none in the numbers from the wrapper of the authors' package `schedulefree`. Its
    AdamW and SGD are `keras_tfopt.ScheduleFreeAdamW` and `keras_tfopt.ScheduleFreeSGD`, which need
    less memory. Its RAdam with `silent_sgd_phase=False` and no weight decay is this around a
    `keras_tfopt.RectifiedAdam` with `beta_1=0` and a `sma_threshold` just above 4.
    `keras.optimizers.ScheduleFreeAdamW` is Adam alone, and evaluates at y.
    """

    flat = True
    ignores_changes = True
    needs_gradient = False

    momentum: float = within(0, 1, default=0.9, right_open=True, fixed=True)
    weight_decay_at_y: float = within(0, default=0.0, fixed=True)
    r: float = within(0, default=0.0, fixed=True)
    weight_lr_power: float = within(0, default=2.0, fixed=True)

    def __post_init__(self) -> None:
        check_one(self.inner_optimizer, type(self).__name__)  # by whose learning rate it weighs
        check_scheduled(self.inner_optimizer)

    def slots(self, like: Any) -> dict[str, Slot]:
        own = {name: Slot(like.shape, "variable") for name in ("z", "x")}
        return {**own, "weight_sum": Slot((), 0.0), "largest_rate": Slot((), 0.0)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "growth": step**self.r}

    def average(self, x: Any, s: Any) -> Any:
        return s.x

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g, s.z - t.lr * self.weight_decay_at_y * x if self.weight_decay_at_y else s.z

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        z = x
        rate = ops.where(t.lr > s.largest_rate, t.lr, s.largest_rate)
        weight = t.growth * rate**self.weight_lr_power
        total = s.weight_sum + weight
        share = ops.where(total > 0, weight / ops.where(total > 0, total, 1.0), 0.0)
        # In this form, rows in which x and z are equal stay to the bit.
        mean = s.x + share * (z - s.x)
        y = mean + (1 - self.momentum) * (z - mean)
        return y, {"z": z, "x": mean, "weight_sum": total, "largest_rate": rate}
