from __future__ import annotations

from typing import Any

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.fields import integer
from keras_tfopt.rule import register


@register
class ModelAverage(OverWorkers):
    r"""Trains on each worker alone, and replaces all models by their mean periodically.

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
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none.

    Row gradients: passed on; the mean is taken of whole variables.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.ModelAverage(keras_tfopt.Momentum(0.1), interval_steps=50)

    Reference: McDonald et al., "Distributed Training Strategies for the Structured Perceptron"
    (2010); Stich, "Local SGD Converges Fast and Communicates Little" (2019).

    Differences: the numbers are those of `tf.contrib.opt.ModelAverageOptimizer`, where workers wait
    for each other too. The original keeps the last mean on a parameter server, and its
    `global_step` counts means. Here the workers exchange with each other, and `iterations` counts
    their own steps. `keras.optimizers` has no such optimizer.
    """

    interval_steps: int = integer(1, default=100)

    def updates_between(self) -> int:
        return self.interval_steps

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return total / t.senders, {}
