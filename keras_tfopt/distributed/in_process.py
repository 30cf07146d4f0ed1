"""Several workers in one process, which act in any order that one likes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_tfopt.checks import check_integer
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.distributed.protocols import Exchanges, Protocol, Stale, Together, Tokens
from keras_tfopt.distributed.site import Site, checked
from keras_tfopt.execution import clone


class InProcess:
    """Replays workers in one process, event by event, in any order.

    For studying a method, for tests, and for what workers that exchange directly cannot have:
    they all wait for each other, whereas workers of a parameter server, as TensorFlow 1 had, come
    one by one, with gradients of variables that have moved since. Each worker has variables of its
    own and an optimizer of its own, the center too. The formulas are those of the optimizer, which
    this takes for a description of the method; nothing is connected and nothing runs in parallel.

    What can happen depends on the method:

    - `ModelAverage`, `DiLoCo`, `AGN`, `ElasticAverage`: `step`, of one worker. When its period
      ends, it exchanges with the center: AGN and ElasticAverage at once and alone, the others as
      soon as all have come so far, and until then it waits.
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
    >>> run = keras_tfopt.distributed.InProcess(method, 2, {"x": [0.0]})
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
        inner = optimizer.inner_optimizer
        self.workers = [Site(variables, clone(inner)) for _ in range(count)]
        center = optimizer.center_optimizer
        self.center = Site(variables, clone(inner if center is None else center))
        self._events = self._protocol(optimizer, variables, synchronous, initial_tokens)

    def _protocol(
        self, method: OverWorkers, variables: Any, synchronous: bool, initial_tokens: int
    ) -> Protocol:
        sites = method, self.workers, self.center
        if synchronous:
            method.check_workers(len(self.workers))
            if method.averages_gradients:
                return Together(*sites)
        elif method.events == "tokens":
            return Tokens(*sites, initial_tokens=initial_tokens)
        elif method.events == "stale":
            return Stale(*sites)
        at_once = synchronous or method.events != "one by one"
        return Exchanges(*sites, at_once=at_once, values=variables)

    @property
    def global_step(self) -> int:
        """Exchanges, or steps of the center, so far."""
        return self._events.global_step

    @property
    def stale(self) -> int:
        """Gradients that were too old, so far."""
        return getattr(self._events, "stale", 0)

    @property
    def accumulated(self) -> int:
        """Gradients that wait for the center to aggregate them."""
        return len(getattr(self._events, "accumulated", ()))

    @property
    def tokens(self) -> int:
        """Tokens that no worker has taken."""
        return len(getattr(self._events, "tokens", ()))

    def step(self, worker: int, gradients: Any) -> bool:
        """A training step of a worker.

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
        return self._events.step(*self._checked(worker, gradients))

    def read(self, worker: int, gradients: Any) -> int:
        """A worker computes gradients at the variables as they are. Gives the step they are of."""
        return self._events.read(*self._checked(worker, gradients))

    def apply(self, worker: int) -> bool:
        """The gradients that a worker has read make a step, unless they are too old by now.

        Returns:
            Whether they did.

        Raises:
            RuntimeError: if it has read none since the last time.
        """
        return self._events.apply(self._number(worker))

    def aggregate(self) -> int:
        """The center makes a step by the mean of what has come. Gives the number of gradients.

        Raises:
            RuntimeError: if too few have come.
        """
        return self._events.aggregate()

    def run(
        self, schedule: Iterable[int], gradients: Callable[[int, dict[str, Any]], Any]
    ) -> list[bool]:
        """Steps of workers in the order of a schedule.

        Args:
            schedule: Numbers of workers.
            gradients: `(worker, values) -> gradients` at the worker's values, by name.

        Returns:
            What `step` gave, for each.
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

    def _checked(self, worker: Any, gradients: Any) -> tuple[int, dict[str, Any]]:
        return self._number(worker), checked(gradients, self.center)
