"""Several workers in one process, which act in any order, to replay recordings and to test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from integration.in_process.protocols import Exchanges, Protocol, Stale, Together, Tokens
from integration.in_process.site import Site
from keras_tfopt.checks import check_integer
from keras_tfopt.distributed import DropStale, OverWorkers, SyncReplicas
from keras_tfopt.distributed.exchanges.clones import clone


class InProcess:
    """Replays workers in one process, event by event, in any order.

    Workers that exchange directly all wait for each other. Workers of a parameter server, as in
    TensorFlow 1, come one by one, with gradients of variables that have moved since. This replays
    both. Each worker has variables and an optimizer of its own, and so has the center. The formulas
    are those of the given optimizer. Nothing is connected and nothing runs in parallel.

    What can happen depends on the method:

    - `ModelAverage`, `DiLoCo`, `AGN`, `ElasticAverage`: `step`, of one worker. When its period
      ends, it exchanges with the center. With AGN and ElasticAverage it does so at once and alone;
      with the others it waits until all have come so far.
    - `DropStale`: `read`, in which a worker computes a gradient at the variables of the center, and
      `apply`, by when the center may have moved.
    - `SyncReplicas`: `step`, in which a worker sends a gradient and takes a token, for which it may
      have to wait, and `aggregate`, in which the center makes a step and hands out tokens. A
      gradient is dropped if the token of its worker is of an earlier step than the center's. A
      worker that waits may step all the same, as one with several threads.

    With `synchronous=True` there is `step` for all, and workers wait for each other: the numbers
    are those of workers that are connected.

    Args:
        optimizer: A `keras_tfopt.distributed.OverWorkers`, which stays as it is.
        workers: Number of workers, integer >= 1. A single one exchanges with the center, too.
        variables: Initial values by name, the same for all.
        synchronous: Whether all workers act together, as if they were connected. Defaults to
            False: as in TensorFlow 1.
        initial_tokens: For `SyncReplicas`: tokens that are there at the start, integer >= 0; 0
            makes workers wait for the first step. Defaults to -1: as many as gradients that
            a step needs.

    Attributes:
        workers: A list of sites, each with `values`, `slots`, `updates`, `iterations`, `gradients`,
            `seen` and `waits`.
        center: The site of the center.

    Example:

    >>> method = keras_tfopt.ElasticAverage(keras_tfopt.GradientDescent(0.1), 2, rho=0.0)
    >>> run = InProcess(method, 2, {"x": [0.0]})
    >>> for worker in (0, 0, 1, 0, 1):
    ...     run.step(worker, {"x": run.workers[worker].values["x"] - worker})
    >>> run.center.values["x"]

    Differences from the originals: the elastic term of `ElasticAverage` and all formulas are those
    of `tf.contrib.opt` and `tf.train`, whose trajectories this follows. A sparse gradient whose
    rows are not sorted or repeat is summed by rows first; there, an accumulator that expects them
    sorted mixes up which row is divided by what.
    """

    def __init__(
        self,
        optimizer: OverWorkers,
        workers: int,
        variables: Mapping[str, Any],
        synchronous: bool = False,
        initial_tokens: int = -1,
    ):
        if not isinstance(optimizer, OverWorkers):
            raise TypeError(
                "Argument `optimizer` must be a keras_tfopt.distributed.OverWorkers. Received: "
                f"{optimizer!r}"
            )
        if not variables:
            raise ValueError("Argument `variables` must hold at least one. Received: {}")
        count = check_integer("workers", workers, 1)
        check_integer("initial_tokens", initial_tokens, -1)
        inner, center = optimizer.inner_optimizer, optimizer.center_optimizer
        self.workers = [Site(variables, clone(inner)) for _ in range(count)]
        self.center = Site(variables, clone(inner if center is None else center))
        kind: type[Protocol] = Exchanges
        if synchronous and optimizer.averages_gradients:
            kind = Together
        elif not synchronous and isinstance(optimizer, SyncReplicas):
            kind = Tokens
        elif not synchronous and isinstance(optimizer, DropStale):
            kind = Stale
        if synchronous:
            optimizer.check_workers(count)
        self._protocol = kind(optimizer, self.workers, self.center, synchronous, initial_tokens)

    @property
    def global_step(self) -> int:
        """Number of exchanges, or of steps of the center."""
        return self._protocol.global_step

    @property
    def stale(self) -> int:
        """Number of gradients that were too old."""
        return self._protocol.stale

    @property
    def accumulated(self) -> int:
        """Number of gradients that wait for the center to aggregate them."""
        return len(self._protocol.accumulated)

    @property
    def tokens(self) -> int:
        """Number of tokens that no worker has taken."""
        return len(self._protocol.tokens)

    def step(self, worker: int, gradients: Any) -> bool:
        """Make a training step of a worker.

        Args:
            worker: Its number, from 0.
            gradients: Tensors, arrays, `RowGradient`s or None, by name or in the order of
                the variables.

        Returns:
            Whether an exchange took place in it; of `SyncReplicas`, whether the gradient counts.

        Raises:
            RuntimeError: if the worker waits for others.
            ValueError: if the method has no such event, or gradients do not fit the variables.
        """
        return self._event("step")(self._number(worker), self.center.checked(gradients))

    def read(self, worker: int, gradients: Any) -> int:
        """Read gradients that a worker computes now; return the number of the center's step."""
        return self._event("read")(self._number(worker), self.center.checked(gradients))

    def apply(self, worker: int) -> bool:
        """Make a step by the gradients that a worker has read, unless they are too old by now.

        Returns:
            Whether there was a step.

        Raises:
            RuntimeError: if the worker has read none since the last time.
        """
        return self._event("apply")(self._number(worker))

    def aggregate(self) -> int:
        """Make a step of the center by the mean of what has come; return how many gradients.

        Raises:
            RuntimeError: if too few have come.
        """
        return self._event("aggregate")()

    def run(
        self, schedule: Iterable[int], gradients: Callable[[int, dict[str, Any]], Any]
    ) -> list[bool]:
        """Make steps of workers in the order of a schedule.

        Args:
            schedule: Numbers of workers.
            gradients: `(worker, values) -> gradients` at the worker's values, by name.

        Returns:
            What `step` returned, for each.
        """
        return [self.step(w, gradients(w, self.workers[w].values)) for w in schedule]

    def _number(self, worker: Any) -> int:
        number = check_integer("worker", worker, 0)
        if number >= len(self.workers):
            raise ValueError(
                f"Argument `worker` must be an integer from 0 to {len(self.workers) - 1}. "
                f"Received: {worker!r}"
            )
        return number

    def _event(self, name: str) -> Callable:
        event = getattr(self._protocol, name, None)
        if event is None:
            raise ValueError(
                f"{type(self._protocol.method).__name__} has other events here than `{name}`: "
                f"it is of {type(self._protocol).__name__}, see integration.in_process.InProcess"
            )
        return event
