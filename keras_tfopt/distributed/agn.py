from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_integer
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.execution import Slot
from keras_tfopt.rule import register


@register
class AGN(OverWorkers):
    r"""Explores on each worker; moves a common center by means of the gradients of all.

    Worker $k$ of $K$ makes its own updates from its own gradients, and adds these up:

    $$
    x_k \leftarrow \text{inner step}(x_k, g), \qquad a_k \leftarrow a_k + g
    $$

    After every $T$ updates the center, with slots of its own, makes one step of the inner
    optimizer, and every worker starts again from there:

    $$
    c \leftarrow \text{inner step}\left(c, \frac{1}{K} \sum_k \frac{a_k}{T}\right), \qquad
    x_k \leftarrow c, \qquad a_k \leftarrow 0
    $$

    The step of the center has the learning rate and the number of the update before it. Slots of
    the workers stay as they are. The center starts at the initial values of the variables.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration, except a
            `MultiOptimizer`.
        communication_period: $T$, integer >= 1, in updates. Defaults to 10.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: `center` and `gradient_sum`, of the variable's shape; float32 for half-precision
    variables. `optimizer.center_optimizer` has the slots of the center. With one worker the center
    follows the variable, and makes no steps.

    Row gradients: passed on to the worker's step. Their sums are dense: in variables that match
    `row_variables` of the inner optimizer, the center moves in rows whose sum is not zero.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.AGN(keras_tfopt.Momentum(0.01), communication_period=5)

    Reference: Hermans, Spanakis and Moeckel, "Accumulated Gradient Normalization" (2017).

    Differences: `tf.contrib.opt.AGNOptimizer` is asynchronous: each worker moves the center by its
    own mean gradient when its own period ends, one after another. Here all do at once, and the
    center makes one step by the mean over the workers; `keras_tfopt.distributed.InProcess` has
    both. There, the powers of Adam's decay rates are those of the worker and advance in the steps
    of the center too; and on variables that are not resources, $a_k$ is sometimes not divided.
    There is none in `keras.optimizers`.
    """

    shared = ("center",)
    events = "one by one"
    moves_center = True

    def __init__(
        self,
        inner_optimizer: Any,
        communication_period: int = 10,
        exchange: Any = None,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, exchange, name=name, **base)
        self.communication_period = check_integer("communication_period", communication_period, 1)

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
