from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.rule import register


@register
class ModelAverage(OverWorkers):
    r"""Trains on each worker alone and puts the mean of all models into all of them, periodically.

    Worker $k$ of $K$ makes its own updates. After every $T$ of them,

    $$
    x_k \leftarrow \frac{1}{K} \sum_j x_j
    $$

    Slots of the inner optimizer stay with the worker and are not averaged.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        interval_steps: $T$, integer >= 1, in updates. Defaults to 100.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: none.

    Row gradients: passed on; the mean is that of whole variables.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.ModelAverage(keras_tfopt.Momentum(0.1), interval_steps=50)

    Reference: McDonald et al., "Distributed Training Strategies for the Structured Perceptron"
    (2010); Stich, "Local SGD Converges Fast and Communicates Little" (2019).

    Differences: none in the numbers from `tf.contrib.opt.ModelAverageOptimizer`, where workers wait
    for each other too. It keeps the last mean on a parameter server and counts the means in its
    `global_step`; here the workers exchange with each other, and `iterations` counts their own
    steps. There is none in `keras.optimizers`.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        interval_steps: int = 100,
        exchange: Any = None,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, exchange, name=name, **base)
        self.interval_steps = check_integer("interval_steps", interval_steps, 1)

    def updates_between(self) -> int:
        return self.interval_steps

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return total / t.senders, {}
