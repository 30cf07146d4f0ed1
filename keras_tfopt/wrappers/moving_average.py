from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.algorithm import check_bool, check_number, register
from keras_tfopt.execution import Slot
from keras_tfopt.wrapper import Wrapper


@register
class MovingAverage(Wrapper):
    r"""Keeps an exponential moving average of each variable while another optimizer trains it.

    After each step of the inner optimizer, with the new x:

    $$
    a \leftarrow a - (1 - d)(a - x), \qquad
    d = \min\left(d_0, \frac{1 + N}{10 + N}\right) \text{ if N is given, else } d_0
    $$

    The averages start at the initial values of the variables and stay beside them; the variables
    themselves are trained as if there were no wrapper.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        average_decay: $d_0$ in [0, 1]. Defaults to 0.9999.
        num_updates: $N$, which lets averages follow faster in the beginning: a number >= 0, a
            scalar variable that is read at each step, or True for the number of the inner
            optimizer's steps, 1 at the first. Defaults to None: always $d_0$.
        sequential_update: Whether averages are taken of the updated variables. False allowed the
            original to read a variable before or after its update, as it happened; here both mean
            after. Defaults to True.
        name: Name of the optimizer.

    Slots: `average`, of the variable's shape; float32 for half-precision variables.

    Row gradients: the whole average moves, also where the variable did not.

    Example:

    >>> model.compile(optimizer=keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(), 0.999))

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992).

    Differences: none in the numbers from `tf.contrib.opt.MovingAverageOptimizer`, whose
    `num_updates` took the global step, read after its increment. `use_ema=True` of
    `keras.optimizers` starts at the first updated value, has no N, and overwrites the
    variables when training ends.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        average_decay: float = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, name=name, **base)
        self.average_decay = check_number("average_decay", average_decay, 0, 1)
        if not (
            num_updates is None or num_updates is True or isinstance(num_updates, keras.Variable)
        ):
            num_updates = check_number("num_updates", num_updates, 0)
        self.num_updates = num_updates
        self.sequential_update = check_bool("sequential_update", sequential_update)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"average": Slot(like.shape, "variable")}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        # The rate is 1 - d, computed as such: in float32, 1 - 0.9999 is off by 1 part in 6,000.
        rate = 1 - self.average_decay
        if self.num_updates is None:
            return {"rate": rate}
        n = step if self.num_updates is True else self.num_updates
        early = 9 / (10 + ops.cast(n, step.dtype))
        return {"rate": ops.where(early > rate, early, rate * ops.ones_like(early))}

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {"average": s.average - t.rate * (s.average - x)}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if isinstance(self.num_updates, keras.Variable):
            config["num_updates"] = float(self.num_updates.numpy())
        return config
