from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, full, register


@register
class RegAdagrad(Rule):
    r"""Adagrad that can take steps which its accumulator does not see.

    $$
    \begin{aligned}
    a &\leftarrow a + g^2 & \text{(left out under `avoid_updating_slots`)} \\
    x &\leftarrow x - \eta \frac{g}{\sqrt{a}}
    \end{aligned}
    $$

    Meant for losses that are minimized in turns, such as a task and a regularizer: the gradients of
    the second shall not slow down the first.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.01.
        initial_accumulator_value: Number > 0 that accumulators start at. Defaults to 0.1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accumulator`, the sum of squared gradients $a$, of the variable's shape.

    Row gradients: only touched rows of the variable and of the slot change.

    Example:
    >>> optimizer = keras_tfopt.RegAdagrad(0.1)
    >>> optimizer.apply(gradients, variables)
    >>> with optimizer.avoid_updating_slots():
    ...     optimizer.apply(gradients_of_regularizer, variables)

    Reference: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization" (2011).

    Differences: `tf.contrib.opt.RegAdagradOptimizer` decides when the operation is built, here a
    variable does when it runs, so one compiled step serves both. Under `avoid_updating_slots` the
    present gradient is not in the root, as in the original, which has no default learning rate.
    Keras's Adagrad has an epsilon and no such steps.
    """

    sparse = "rows"

    learning_rate: Any = 0.01
    initial_accumulator_value: float = within(0, default=0.1, left_open=True, fixed=True)

    def __post_init__(self) -> None:
        if self.is_formula():
            return
        self._avoided = 0
        # Not an argument, but read by compiled steps like one that is a variable: 0 or 1.
        self.avoiding = self.add_variable(
            (), "zeros", "float32", aggregation="only_first_replica", name="avoiding"
        )

    @contextlib.contextmanager
    def avoid_updating_slots(self) -> Iterator[None]:
        """Steps within leave the slots as they are: eager ones, compiled ones, those of `fit`."""
        self._avoided += 1
        self.avoiding.assign(1.0)
        try:
            yield
        finally:
            self._avoided -= 1
            self.avoiding.assign(float(self._avoided > 0))

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "avoiding": self.avoiding}

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        self.avoiding.assign(float(self._avoided > 0))  # the context decides, not the file

    def slots(self, like: Any) -> dict[str, Any]:
        return {"accumulator": full(like, self.initial_accumulator_value, signed=False)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        a = ops.where(self.avoiding > 0, s.accumulator, s.accumulator + ops.square(g))
        return x - t.lr * g / ops.sqrt(a), {"accumulator": a}
