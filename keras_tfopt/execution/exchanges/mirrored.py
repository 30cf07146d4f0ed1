"""Workers that are the replicas of a MirroredStrategy, in one process of TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils

from keras_tfopt.execution.exchanges import flat
from keras_tfopt.execution.exchanges.exchange import Exchange
from keras_tfopt.execution.training_state import array_of


class MirroredReplicas(Exchange):
    """The replicas of a `tf.distribute.MirroredStrategy`, each a worker.

    What the strategy takes for copies of one variable then differs from replica to replica. As
    everywhere under a strategy, the loss of a replica is to be divided by the number of replicas;
    `fit` does so.

    Args:
        strategy: The strategy in whose scope model and optimizer are created.
    """

    one_process = True

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self.size = strategy.num_replicas_in_sync
        self._of_thread = threading.local()

    def prepare(self, optimizer: Any) -> None:
        if hasattr(optimizer, "_all_reduce_sum_gradients"):
            optimizer._all_reduce_sum_gradients = list
            optimizer.steps_apart = True

    def own_gradients(self, grads: list[Any]) -> list[Any]:
        return [g * self.size for g in grads]  # the loss was divided by the number of replicas

    def rank_now(self) -> Any:
        replay = self._replay()
        return replay.rank if replay else _context().replica_id_in_sync_group

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        replay = self._replay()
        if replay:
            return replay.sums_of(tensors)
        context = _context()
        return flat.summed(tensors, lambda x: context.all_reduce(tf.distribute.ReduceOp.SUM, x))

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        def everywhere(strategy: Any, predicate: Any, tensors: list[Any]) -> list[Any]:
            # A condition around an exchange of the replicas has to be outside of the replicas.
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
        """`function` of the tensors of each replica.

        The function is pure: it is called until it asks for a sum, and again once that is known.
        """
        sums: list[list[Any]] = []
        while True:
            asked, new = [], []
            for rank, tensors in enumerate(each):
                self._of_thread.replay = Replay(rank, sums)
                try:
                    with tf.device(self._strategy.extended.worker_devices[rank]):
                        new.append([tf.identity(x) for x in function(list(tensors))])
                except SumNeeded as needed:
                    asked.append(needed.tensors)
                finally:
                    self._of_thread.replay = None
            if not asked:
                return new
            sums.append(summed_over(asked))

    def _replay(self) -> Replay | None:
        return getattr(self._of_thread, "replay", None)

    def _local(self, value: Any) -> list[Any]:
        found = list(self._strategy.experimental_local_results(value))
        return found if len(found) == self.size else found * self.size

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return list(arrays)  # replicas start alike

    def gather(self, text: str) -> list[str]:
        return [text] * self.size

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


class Replay:
    """What a function finds that is called for one replica after the other."""

    def __init__(self, rank: int, sums: list[list[Any]]):
        self.rank = rank
        self._known = iter(sums)

    def sums_of(self, tensors: list[Any]) -> list[Any]:
        known = next(self._known, None)
        if known is None:
            raise SumNeeded(tensors)
        return known


def summed_over(each: list[list[Any]]) -> list[Any]:
    """Sums of the tensors of all replicas, which travel as one tensor of each dtype."""
    others = [iter(_flats(tensors)) for tensors in each[1:]]
    return flat.summed(each[0], lambda x: tf.add_n([x, *(next(other) for other in others)]))


def _flats(tensors: list[Any]) -> list[Any]:
    found: list[Any] = []

    def keep(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    flat.summed(tensors, keep)
    return found


def _context() -> Any:
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "Replicas exchange only inside of `strategy.run`. Received: a step outside of replicas"
        )
    return context
