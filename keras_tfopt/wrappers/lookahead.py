from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer, within
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


@register
class Lookahead(Wrapper):
    r"""Explores with fast weights and follows them with slow weights, every few steps.

    After each step $t$ of the inner optimizer, with $t$ divisible by $k$:

    $$
    \phi \leftarrow \phi + \alpha (x - \phi), \qquad x \leftarrow \phi
    $$

    The slow weights $\phi$ start at the initial values of the variables.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        sync_period: $k$, integer >= 1. Defaults to 6.
        slow_step_size: $\alpha$ in [0, 1]. Defaults to 0.5.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `slow`, of the variable's shape; float32 for half-precision variables.

    Row gradients: passed on; a synchronization moves the whole variable.

    Example:

    >>> optimizer = keras_tfopt.Lookahead(keras_tfopt.Adam(0.001), sync_period=5)

    Reference: Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back" (2019).

    Differences: none in the numbers from `tensorflow_addons.optimizers.Lookahead`, whose slow
    weights start at the variables as they are at the first step: the same. There is none in
    `keras.optimizers` and in TensorFlow 1.
    """

    scope = "element"
    changes_variables = True
    rows_alone = True
    needs_gradient = False

    sync_period: int = integer(1, default=6)
    slow_step_size: float = within(0, 1, default=0.5, fixed=True)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"slow": Slot(like.shape, "variable")}

    def average(self, x: Any, s: Any) -> Any:
        return s.slow

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        syncs = ops.equal(t.iteration % self.sync_period, 0)
        slow = ops.where(syncs, s.slow + self.slow_step_size * (x - s.slow), s.slow)
        return ops.where(syncs, slow, x), {"slow": slow}
