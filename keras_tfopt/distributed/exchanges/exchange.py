"""The interface between optimizers over workers and an engine that carries tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tfopt.engine import conditional


class Exchange:
    """Connects a worker with the others, and carries tensors between them.

    A subclass for another engine defines `rank`, `size`, `all_reduce_sum`, `broadcast` and
    `gather`. An engine with a process for each worker needs nothing else: a mean is a sum divided
    by `size`, and workers that are left out add zeros to the sum.

    All workers call the same methods in the same order, with tensors of the same shapes and dtypes.
    An engine that waits for a worker for longer than its time-out raises an error that names it.

    Attributes:
        rank: Number of this worker, from 0 to `size - 1`. If one process runs several, the number
            of the first one.
        size: Number of workers.
    """

    rank: int = 0
    size: int = 1
    # Whether the workers are replicas in one process. Their variables are equal at the start.
    one_process = False
    # Whether a gradient may be None on some workers; then `count` adds up who has which.
    may_miss_gradients = False
    # Whether a `keras_tfopt.LossScaleOptimizer` may be around optimizers over these workers.
    takes_loss_scale = True

    def prepare(self, optimizer: Any) -> None:
        """Prepare an optimizer inside of one over workers, before the latter is built."""

    def own_gradients(self, grads: list[Any]) -> list[Any] | None:
        """Return this worker's gradients, if the backend would otherwise sum them over replicas."""
        return None

    def rank_now(self) -> Any:
        """Return `rank` inside a step: an int, or a tensor where workers share one program."""
        return self.rank

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        """Return the sums over all workers, inside a step; one flat collective for each dtype."""
        raise NotImplementedError

    def count(self, counts: np.ndarray, step: Callable[[], int]) -> np.ndarray:
        """Return the sums of small numbers over all workers, before an exchange of gradients.

        Raise an error if workers are at different steps; `step` returns the number of this one's.
        """
        raise NotImplementedError

    def expect_steps(self) -> None:
        """Note that an optimizer begins, or goes on from saved state. Called on the host."""

    def check_steps(self, own: Any, total: Any) -> None:
        """Raise an error in an exchange if workers are at different steps, where they can be.

        Args:
            own: The number of this worker's steps, as a scalar tensor.
            total: The sum of these numbers over all workers.
        """

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        """Return `function(tensors)` if the predicate holds, otherwise the tensors themselves.

        Called inside a step. The function returns tensors of the same number, shapes and dtypes.
        The predicate has the same value on all workers. If it is false, nothing is exchanged.
        """
        return conditional(predicate, lambda: list(function(tensors)), lambda: list(tensors))

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of worker 0. Called on the host, when an optimizer is built."""
        raise NotImplementedError

    def gather(self, text: str) -> list[str]:
        """Return the texts of all workers, by rank. Called on the host, when one is built."""
        raise NotImplementedError

    @property
    def workers_here(self) -> int:
        """Number of workers that run in this process."""
        return 1

    def on_each(self, function: Callable, *given: Any) -> Any:
        """Return the result of a function that reads and assigns variables, outside of steps.

        Where each worker of this process has a copy of each variable, the function runs on each of
        them. Then results differ between workers, and may be given to another call.
        """
        return function(*given)

    def values_of(self, variable: Any) -> list[np.ndarray]:
        """Return a variable's value on each worker of this process, if there are several."""
        return []

    def set_values(self, variable: Any, values: list[np.ndarray]) -> None:
        """Set a variable to a value of its own on each worker of this process."""
        raise NotImplementedError

    def train_apart(self, model: Any) -> None:
        """Make the workers of one program train apart; workers of several programs always do."""

    def shards(self) -> Any:
        """Return an object that says which worker keeps the state of which variable.

        Raises:
            ValueError: if each worker of this engine keeps all state.
        """
        raise ValueError(
            "keras_tfopt.distributed.ShardedState needs workers on PyTorch. On a JAX mesh, give "
            "the optimizer `shard_state=True`; on TensorFlow, each worker keeps all state. "
            f"Received: {type(self).__name__} of {self.size} workers"
        )

    def row_shards(self, rows: int) -> Any:
        """Return how a table with this number of rows is divided over the workers.

        Raises:
            ValueError: if this engine does not divide tables.
        """
        raise ValueError(
            f"{type(self).__name__} of {self.size} workers divides no tables: connect workers on "
            "PyTorch, or set a keras.distribution on JAX"
        )

    def close(self) -> None:
        """End the connection."""

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        if current() is self:
            set_current(Alone())
        self.close()


class OneProcess(Exchange):
    """Workers in one process, which have the same program and the same initial weights."""

    one_process = True

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return list(arrays)

    def gather(self, text: str) -> list[str]:
        return [text] * self.size


class Alone(OneProcess):
    """The exchange of a worker that has no others."""

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        return list(tensors)


_connected: Exchange = Alone()


def current() -> Exchange:
    """Return the exchange that `keras_tfopt.distributed.connect` made last; `Alone()` before."""
    return _connected


def set_current(exchange: Exchange) -> Exchange:
    """Set the exchange that optimizers use by default, and return it."""
    global _connected
    _connected = exchange
    return exchange
