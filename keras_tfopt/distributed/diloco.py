from __future__ import annotations

from typing import Any

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer, within
from keras_tfopt.rule import register


@register
class DiLoCo(OverWorkers):
    r"""Trains on each worker for many steps, then makes an outer step with Nesterov momentum.

    Worker $k$ of $K$ makes its own updates, from a center $c$ that is the same for all. After every
    $H$ updates:

    $$
    \Delta = c - \frac{1}{K} \sum_k x_k, \qquad m \leftarrow \mu m + \Delta, \qquad
    c \leftarrow c - \eta (\Delta + \mu m), \qquad x_k \leftarrow c
    $$

    The center starts at the initial values of the variables, $m$ at zero. With $\eta = 1$ and
    $\mu = 0$ it is `ModelAverage`. Slots of the inner optimizer stay with the worker.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. The paper has AdamW.
        outer_learning_rate: $\eta$, number >= 0. Defaults to 0.7, as in the paper.
        outer_momentum: $\mu$ in [0, 1). Defaults to 0.9, as in the paper.
        period: $H$, integer >= 1, in updates. Defaults to 500, as in the paper.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `center` and `outer_momentum`, of the variable's shape, the same on all workers; float32
    for half-precision variables. With one worker the center equals the variable after each period.

    Row gradients: passed on; the outer step moves whole variables.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.DiLoCo(keras_tfopt.Adam(4e-4, weight_decay=0.1), period=100)

    Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (2023).

    Differences: TensorFlow 1 and `keras.optimizers` have no such optimizer. The outer step is that
    of PyTorch's SGD with `nesterov=True`, as in the paper. With a single worker the paper's method
    still makes outer steps, as `keras_tfopt.Lookahead` does; here it makes none.
    """

    shared = ("center", "outer_momentum")

    outer_learning_rate: float = within(0, default=0.7, fixed=True)
    outer_momentum: float = within(0, 1, default=0.9, right_open=True, fixed=True)
    period: int = integer(1, default=500)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"center": Slot(like.shape, "variable"), "outer_momentum": Slot(like.shape)}

    def updates_between(self) -> int:
        return self.period

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        delta = s.center - total / t.senders
        m = self.outer_momentum * s.outer_momentum + delta
        x = s.center - self.outer_learning_rate * (delta + self.outer_momentum * m)
        return x, {"center": x, "outer_momentum": m}

    def alone(self, x: Any, s: Any) -> dict[str, Any]:
        return {"center": x}
