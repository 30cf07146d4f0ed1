from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer
from keras_tfopt.rule import register


@register
class AGN(OverWorkers):
    r"""Explores on each worker; moves a common center by the gradients of all.

    Worker $k$ of $K$ makes updates with its own gradients, and adds these up:

    $$
    x_k \leftarrow \text{inner step}(x_k, g), \qquad a_k \leftarrow a_k + g
    $$

    After every $T$ updates the center makes one step of the inner optimizer, with slots of its
    own. Every worker starts again from there:

    $$
    c \leftarrow \text{inner step}\left(c, \frac{1}{K} \sum_k \frac{a_k}{T}\right), \qquad
    x_k \leftarrow c, \qquad a_k \leftarrow 0
    $$

    The center's step uses the learning rate and the number of the workers' last update. Slots of
    the workers do not change in it. The center starts at the initial values of the variables.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration, except a
            `MultiOptimizer`.
        communication_period: $T$, integer >= 1, in updates. Defaults to 10.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `center` and `gradient_sum`, of the variable's shape; float32 for half-precision
    variables. `optimizer.center_optimizer` has the slots of the center. With one worker the center
    equals the variable after each period, and makes no steps.

    Row gradients: passed on to the worker's step. Their sums are dense: in variables that match
    `row_variables` of the inner optimizer, the center moves in rows whose sum is not zero.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.AGN(keras_tfopt.Momentum(0.01), communication_period=5)

    Reference: Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization" (2017).

    Differences: `tf.contrib.opt.AGNOptimizer` is asynchronous: a worker moves the center by its own
    mean gradient as soon as its own period ends. Here all workers exchange at once, and the center
    makes one step by their mean. In the original, worker and center share the powers of Adam's
    decay rates, which advance in the steps of both; and on variables that are not resources, $a_k$
    is sometimes not divided by $T$. `keras.optimizers` has no such optimizer.
    """

    shared = ("center",)
    moves_center = True

    communication_period: int = integer(1, default=10)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"center": Slot(like.shape, "variable"), "gradient_sum": Slot(like.shape)}

    def updates_between(self) -> int:
        return self.communication_period

    def send(self, x: Any, s: Any, t: Any) -> Any:
        return s.gradient_sum / t.gradients

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {"gradient_sum": total / t.senders}

    def alone(self, x: Any, s: Any) -> dict[str, Any]:
        return {"center": x, "gradient_sum": ops.zeros_like(s.gradient_sum)}
