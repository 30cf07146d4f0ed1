from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_number
from keras_tfopt.engine import Slot, check_scalar
from keras_tfopt.fields import field, flag, integer, within
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


def _check_num_updates(name: str, value: Any) -> Any:
    if value is True or isinstance(value, keras.Variable):
        check_scalar(name, value)
        return value
    return check_number(name, value, 0)


@register
class MovingAverage(Wrapper):
    r"""Keeps an exponential moving average of each variable while another optimizer trains it.

    After each step of the inner optimizer, with the new x:

    $$
    a \leftarrow a - (1 - d)(a - x), \qquad
    d = \min\left(d_0, \frac{1 + N}{10 + N}\right) \text{ if N is given, else } d_0
    $$

    The averages start at the initial values of the variables and are kept apart; the variables
    themselves are trained as if there were no wrapper. Until `start_step`, $d = 0$: the averages
    are the variables.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        average_decay: $d_0$: number in [0, 1], schedule, scalar variable, or callable without
            arguments. Defaults to 0.9999.
        num_updates: $N$, which lets averages follow faster in the beginning: a number >= 0, a
            scalar variable that is read at each step, or True for the number of the inner
            optimizer's steps, 1 at the first. Defaults to None: always $d_0$.
        start_step: Steps before the averages part from the variables, integer >= 0. Defaults to 0.
        dynamic_decay: Whether $N$ is the number of steps since `start_step`, 0 at the first. If
            there is `num_updates` as well, the smaller one counts. Defaults to False.
        sequential_update: Whether averages are taken of the updated variables. False allowed the
            original to read a variable before or after its update, as it happened; here both mean
            after. Defaults to True.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `average`, of the variable's shape; float32 for half-precision variables.

    Row gradients: the whole average moves, also where the variable did not.

    Example:

    >>> model.compile(optimizer=keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(), 0.999))

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992).

    Differences: none in the numbers from `tf.contrib.opt.MovingAverageOptimizer`, whose
    `num_updates` took the global step, read after its increment, nor from
    `tensorflow_addons.optimizers.MovingAverage`, which has `start_step` and `dynamic_decay`, and
    0.99 for a default of `average_decay`. `use_ema=True` of
    `keras.optimizers` starts at the first updated value, has no N, and overwrites the
    variables when training ends.
    """

    scope = "element"
    by_rate = False
    rows_alone = True
    needs_gradient = False

    average_decay: Any = within(0, 1, default=0.9999)
    num_updates: Any = field(_check_num_updates, default=None)
    sequential_update: bool = flag(default=True)
    start_step: int = integer(0, default=0)
    dynamic_decay: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"average": Slot(like.shape, "variable")}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        # The rate is 1 - d, computed as such: in float32, 1 - 0.9999 is off by 1 part in 6,000.
        decay = self.now(self.average_decay)
        decay = ops.cast(decay, step.dtype) if ops.is_tensor(decay) else decay
        rate = (1 - decay) * ops.ones_like(step)
        since = step - 1 - self.start_step
        counts = [since] * self.dynamic_decay
        if self.num_updates is not None:
            counts.append(step if self.num_updates is True else self.num_updates)
        for n in counts:
            early = 9 / (10 + ops.cast(n, step.dtype))
            rate = ops.where(early > rate, early, rate)
        return {"rate": ops.where(since < 0, ops.ones_like(rate), rate)}

    def average(self, x: Any, s: Any) -> Any:
        return s.average

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {"average": s.average - t.rate * (s.average - x)}
