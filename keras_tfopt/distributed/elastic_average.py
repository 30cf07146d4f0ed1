from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer, within
from keras_tfopt.rule import register


@register
class ElasticAverage(OverWorkers):
    r"""Pulls each worker to a common center, so that it explores around that.

    Worker $k$ of $K$ adds a pull to each gradient. It pulls to $\tilde c_k$, the center that the
    worker saw last:

    $$
    g' = g + \rho (x_k - \tilde c_k)
    $$

    After every $T$ updates, all workers together:

    $$
    \tilde c_k \leftarrow c, \qquad d_k = \alpha (x_k - c), \qquad x_k \leftarrow x_k - d_k, \qquad
    c \leftarrow c + \sum_k d_k
    $$

    The center starts at the initial values of the variables. With $K \alpha > 1$ it overshoots the
    mean of the workers.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        communication_period: $T$, integer >= 1, in updates. Defaults to 10.
        moving_rate: $\alpha$ in [0, 1]. Defaults to None: $0.9 / (T K)$.
        rho: $\rho$, number >= 0. Defaults to None: $\alpha$ divided by the learning rate of the
            update, so that plain gradient descent goes $\alpha$ of the way to $\tilde c_k$. With
            momentum, which adds up this pull, too, the worker would hardly leave the center: then
            choose a small $\rho$, or 0.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `center` and `local_center`, of the variable's shape; float32 for half-precision
    variables. All workers have the same `center`. With one worker, both equal the variable after
    each period.

    Row gradients: become dense, since every row is pulled; with `rho=0` they are passed on.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.ElasticAverage(keras_tfopt.GradientDescent(0.1), 5)

    Reference: Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD" (2015).

    Differences: `tf.contrib.opt.ElasticAverageOptimizer` is asynchronous: a worker exchanges with
    the center as soon as its own period ends, and the next worker sees a center that has moved.
    Here all exchange at once, by the same formulas, with the center from before. The default `rho`
    follows schedules. In the original it is fixed, and fails where the optimizer has no attribute
    for its learning rate, as Adam. `keras.optimizers` has no such optimizer.
    """

    shared = ("center",)

    communication_period: int = integer(1, default=10)
    moving_rate: float | None = within(0, 1, default=None, fixed=True)
    rho: float | None = within(0, default=None, fixed=True)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {name: Slot(like.shape, "variable") for name in ("center", "local_center")}

    def check(self, likes: Sequence[Any]) -> None:
        if self.rho is None and not hasattr(self.inner_optimizer, "learning_rate"):
            raise ValueError(
                "Argument `rho` must be given, because the inner optimizer has no learning rate. "
                "Received: rho=None"
            )

    def updates_between(self) -> int:
        return self.communication_period

    def reach(self, like: Any) -> str | None:
        return None if self.rho == 0 or self.workers() == 1 else "dense"

    def _rate(self, workers: int) -> float:
        if self.moving_rate is not None:
            return self.moving_rate
        return 0.9 / self.communication_period / workers

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        rho = self.rho
        if rho is None:
            rho = ops.where(t.lr > 0, self._rate(t.workers) / t.lr, ops.zeros_like(t.lr))
        # The loss may have been scaled, and `maximize` follows the gradient upwards.
        scale = (-1.0 if self.maximize else 1.0) * (self.loss_scale_factor or 1.0)
        return g + rho * (x - s.local_center) * scale, x

    def send(self, x: Any, s: Any, t: Any) -> Any:
        return self._rate(t.workers) * (x - s.center)

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        new = {"center": s.center + total, "local_center": s.center}
        return x - self.send(x, s, t), new

    def alone(self, x: Any, s: Any) -> dict[str, Any]:
        return {"center": x, "local_center": x}
