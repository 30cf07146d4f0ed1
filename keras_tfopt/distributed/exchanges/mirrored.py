"""Workers that are the replicas of a MirroredStrategy, in one process of TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.exchange import OneProcess
from keras_tfopt.engine.access import array_of
from keras_tfopt.engine.step import gradients


class MirroredReplicas(OneProcess):
    """The replicas of a `tf.distribute.MirroredStrategy`, each a worker.

    The strategy stores a copy of each variable on every replica. Here these copies differ. As
    always under a strategy, the loss of a replica must be divided by the number of replicas, as
    `fit` does.

    Args:
        strategy: The strategy in whose scope model and optimizer are created.
    """

    # It decides on sums over the replicas, while here each has its own gradients.
    takes_loss_scale = False

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self.size = strategy.num_replicas_in_sync
        # While `cond` calls a function for a replica: the rank, and the sums computed so far.
        self._turn = threading.local()

    def prepare(self, optimizer: Any) -> None:
        if hasattr(optimizer, "_all_reduce_sum_gradients"):
            optimizer._all_reduce_sum_gradients = list
            optimizer.steps_apart = True

    def own_gradients(self, grads: list[Any]) -> list[Any]:
        # The loss was divided by the number of replicas.
        return [gradients.scaled(g, self.size) for g in grads]

    def rank_now(self) -> Any:
        turn = self._turn_now()
        return turn[0] if turn else _context().replica_id_in_sync_group

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        turn = self._turn_now()
        if turn:
            known = next(turn[1], None)
            if known is None:
                raise SumNeeded(tensors)
            return known
        context, add = _context(), tf.distribute.ReduceOp.SUM
        return flat.summed(lambda own: context.all_reduce(add, own), tensors)

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        def everywhere(strategy: Any, predicate: Any, tensors: list[Any]) -> list[Any]:
            # TensorFlow allows no exchange inside a condition that a single replica evaluates.
            same = self._local(predicate)[0]
            each = list(zip(*[self._local(tensor) for tensor in tensors], strict=True))
            new = tf.cond(
                same,
                lambda: self._together(function, each),
                lambda: [[tf.identity(x) for x in one] for one in each],
            )
            return distribute_utils.regroup(tuple(new), always_wrap=True)

        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        return _context().merge_call(everywhere, args=(predicate, tensors))

    def _together(self, function: Callable, each: list[tuple]) -> list[list[Any]]:
        """Return `function` of the tensors of each replica.

        The function is pure. A call ends where it asks for a sum that is not known yet. Once all
        replicas have asked for it, the sum is computed, and the function is called again.
        """
        sums: list[list[Any]] = []
        while True:
            asked, new = [], []
            for rank, tensors in enumerate(each):
                self._turn.now = rank, iter(sums)
                try:
                    with tf.device(self._strategy.extended.worker_devices[rank]):
                        new.append([tf.identity(x) for x in function(list(tensors))])
                except SumNeeded as needed:
                    asked.append(needed.tensors)
                finally:
                    self._turn.now = None
            if not asked:
                return new
            sums.append(flat.summed(lambda *own: tf.add_n(own), *asked))

    def _turn_now(self) -> tuple[int, Iterator[list[Any]]] | None:
        return getattr(self._turn, "now", None)

    def _local(self, value: Any) -> list[Any]:
        found = list(self._strategy.experimental_local_results(value))
        return found if len(found) == self.size else found * self.size

    def on_each(self, function: Callable, *given: Any) -> Any:
        return self._strategy.run(function, given)

    @property
    def workers_here(self) -> int:
        return self.size

    def values_of(self, variable: Any) -> list[np.ndarray]:
        return [array_of(part) for part in self._local(variable._value)]

    def set_values(self, variable: Any, values: list[np.ndarray]) -> None:
        for part, value in zip(self._local(variable._value), values, strict=True):
            part.assign(tf.cast(value, part.dtype))


class SumNeeded(Exception):
    """Ends a call of a function that needs a sum which is not known yet."""

    def __init__(self, tensors: list[Any]):
        super().__init__()
        self.tensors = tensors


def _context() -> Any:
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "Replicas exchange only inside of `strategy.run`. Received: a step outside of replicas"
        )
    return context
