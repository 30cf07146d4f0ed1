"""The contract between optimizers over workers and what carries tensors between these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Exchange:
    """What a worker knows of the others, and how it exchanges tensors with them.

    A subclass for another engine defines `rank`, `size`, `all_reduce_sum`, `cond`, `broadcast` and
    `gather`. Nothing else is asked of one with a process for each worker: a mean is a sum divided
    by `size`, and a part of the workers is a sum in which the others have zeros.

    All workers call the same methods in the same order, with tensors of the same shapes and dtypes.
    An engine that waits for a worker for longer than its time-out raises an error that names it.

    Attributes:
        rank: Number of this worker, from 0 to `size - 1`; that of the first one where one process
            runs several.
        size: Number of workers.
    """

    rank: int = 0
    size: int = 1
    # Whether the workers are replicas in one process, whose variables start alike.
    one_process = False

    def prepare(self, optimizer: Any) -> None:
        """Called with each optimizer inside of one over workers, before the latter is built."""

    def own_gradients(self, grads: list[Any]) -> list[Any] | None:
        """The gradients of this worker, where the backend would else sum them over replicas."""
        return None

    def rank_now(self) -> Any:
        """`rank` inside a step: an int, or a tensor where workers share one program."""
        return self.rank

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        """The sums over all workers, inside a step; one flat collective for each dtype."""
        raise NotImplementedError

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        """`function(tensors)` where the predicate holds, else the tensors as they are.

        Inside a step. The function gives tensors of the same number, shapes and dtypes. What it
        exchanges is only exchanged where the predicate holds, which is so on all workers alike.
        """
        raise NotImplementedError

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The arrays of worker 0. On the host, when an optimizer is built."""
        raise NotImplementedError

    def gather(self, text: str) -> list[str]:
        """The texts of all workers, in their order. On the host, when an optimizer is built."""
        raise NotImplementedError

    @property
    def workers_here(self) -> int:
        """How many of the workers run in this process."""
        return 1

    def values_of(self, variable: Any) -> list[np.ndarray]:
        """The value of a variable on each of the workers of this process, if they are several."""
        return []

    def set_values(self, variable: Any, values: list[np.ndarray]) -> None:
        """Gives each of the workers of this process its own value of a variable."""
        raise NotImplementedError

    def train_apart(self, model: Any) -> None:
        """Makes the workers of one program train apart; elsewhere, they do."""

    def close(self) -> None:
        """Ends the connection."""

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        if current() is self:
            set_current(Alone())
        self.close()


class Alone(Exchange):
    """The exchange of a worker that has no others."""

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        return list(tensors)

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        raise RuntimeError("There is nothing to exchange with a single worker")

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return list(arrays)

    def gather(self, text: str) -> list[str]:
        return [text]


_connected: Exchange = Alone()


def current() -> Exchange:
    """The exchange that `keras_tfopt.distributed.connect` made last; `Alone()` before."""
    return _connected


def set_current(exchange: Exchange) -> Exchange:
    """Makes an exchange the one that optimizers take without another."""
    global _connected
    _connected = exchange
    return exchange
