from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.execution import Slot
from keras_tfopt.rule import register


@register
class DiLoCo(OverWorkers):
    r"""Trains on each worker for long, then moves all by an outer step with Nesterov momentum.

    Worker $k$ of $K$ makes its own updates. After every $H$ of them, with the center $c$ from which
    all had started:

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
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: `center` and `outer_momentum`, of the variable's shape, the same on all workers; float32
    for half-precision variables. With one worker the center follows the variable.

    Row gradients: passed on; the outer step is that of whole variables.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.DiLoCo(keras_tfopt.AdamW(4e-4, weight_decay=1e-4), period=100)

    Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (2023).

    Differences: TensorFlow 1 and `keras.optimizers` have none. The paper's outer step is that of
    PyTorch's SGD with `nesterov=True`, and so is this one. With a single worker the paper's method
    still makes outer steps, as `keras_tfopt.Lookahead` does; here it makes none.
    """

    shared = ("center", "outer_momentum")

    def __init__(
        self,
        inner_optimizer: Any,
        outer_learning_rate: float = 0.7,
        outer_momentum: float = 0.9,
        period: int = 500,
        exchange: Any = None,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, exchange, name=name, **base)
        self.outer_learning_rate = check_number("outer_learning_rate", outer_learning_rate, 0)
        self.outer_momentum = check_number("outer_momentum", outer_momentum, 0, 1, right_open=True)
        self.period = check_integer("period", period, 1)

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
