"""The events of workers in one process."""

from __future__ import annotations

import collections
import types
from collections.abc import Collection, Sequence
from typing import Any

from keras import ops

from integration.in_process.site import Gradients, Site, dense
from keras_tfopt.distributed import AGN, ElasticAverage, OverWorkers
from keras_tfopt.distributed.exchanges.row_means import mean_gradient
from keras_tfopt.engine import RowGradient
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.step import gradients as row_gradients
from keras_tfopt.legacy.workers import check_tokens


class Protocol:
    """A subclass has a method for each event: `step`, `read`, `apply`, `aggregate`."""

    global_step = 0  # exchanges, or steps of the center
    stale = 0  # gradients that were too old
    accumulated: Sequence[Gradients] = ()  # gradients that wait for the center
    tokens: Collection[int] = ()  # tokens that no worker has taken

    def __init__(
        self,
        method: Any,
        workers: list[Site],
        center: Site,
        synchronous: bool,
        initial_tokens: int,
    ):
        self.method, self.workers, self.center = method, workers, center

    def _move_all(self, gradients: Gradients) -> None:
        """Make a step of the center, whose variables all workers have."""
        self.center.step(gradients)
        self.global_step += 1
        for worker in self.workers:
            for name in worker.variables:
                worker.put(name, self.center.x(name))


class Exchanges(Protocol):
    """Workers that step alone and exchange with the center from time to time.

    All of them exchange at once, each waiting for the others, or one by one.
    """

    def __init__(self, method: OverWorkers, workers: list[Site], center: Site, *how: Any):
        super().__init__(method, workers, center, *how)
        self.at_once = how[0] or not isinstance(method, (AGN, ElasticAverage))
        self.period = (method.updates_between() or 1) * workers[0].micro_steps  # in calls
        for name in center.variables:
            for slot, description in method.slots(center.like(name)).items():
                for site in [center] if slot in method.shared else workers:
                    x = center.x(name)
                    site.own_slots[name][slot] = x if description.initial == "variable" else 0 * x

    def step(self, number: int, gradients: Gradients) -> bool:
        worker = self.workers[number]
        if worker.waits:
            missing = [n for n, other in enumerate(self.workers) if not other.waits]
            raise RuntimeError(f"Worker {number} waits for the workers {missing} to exchange")
        worker.gradients = {n: self._own_gradient(worker, n, g) for n, g in gradients.items()}
        for name, gradient in gradients.items() if self.method.moves_center else ():
            slots = worker.own_slots[name]
            slots["gradient_sum"] = slots["gradient_sum"] + dense(gradient)
        worker.step(worker.gradients)
        if worker.calls % self.period:
            return False
        worker.waits = True
        if self.at_once and not all(other.waits for other in self.workers):
            return False
        self._exchange([other for other in self.workers if other.waits])
        return True

    def _own_gradient(self, worker: Site, name: str, gradient: Any) -> Any:
        """Return the gradient after the method's `before`, if it has one."""
        if type(self.method).before is OverWorkers.before:
            return gradient
        return self.method.before(dense(gradient), *self._state(worker, name))[0]

    def _state(self, worker: Site, name: str, senders: int = 0) -> tuple[Any, Any, Any]:
        """Return `x, s, t` of a variable, as hooks take them."""
        t = worker.scalars(workers=len(self.workers), senders=senders, gradients=self.period)
        slots = {**self.center.own_slots[name], **worker.own_slots[name]}
        s = collections.namedtuple("Slots", slots)(**slots)  # type: ignore[misc]
        return worker.x(name), s, t

    def _exchange(self, senders: list[Site]) -> None:
        method, center = self.method, self.center
        for name in center.variables:
            given = [self._state(worker, name, len(senders)) for worker in senders]
            total = sum(method.send(x, s, t) for x, s, t in given)
            received = [method.receive(total, x, s, t) for x, s, t in given]
            for worker, (x, new) in zip(senders, received, strict=True):
                worker.put(name, x)
                for slot, value in new.items():
                    owner = center if slot in method.shared else worker
                    owner.own_slots[name][slot] = value
        self.global_step += 1
        if method.moves_center:
            self._move_center(senders)
        for name, slots in center.own_slots.items():
            center.put(name, slots["center"] if "center" in slots else senders[0].x(name))
        for worker in senders:
            worker.waits = False

    def _move_center(self, senders: list[Site]) -> None:
        """Make a step of the center by the mean gradient; the senders start again from there."""
        first, center = senders[0], self.center
        done = first.iterations // first.micro_steps
        # The center goes on from the count of steps of a worker that exchanges alone.
        center.optimizer.iterations.assign(done - 1 if self.at_once else done)
        center.step({name: s["gradient_sum"] for name, s in first.own_slots.items()})
        for worker in senders:
            if not self.at_once:
                worker.optimizer.iterations.assign(center.iterations * worker.micro_steps)
            for name, slots in worker.own_slots.items():
                worker.put(name, center.x(name))
                slots["gradient_sum"] = 0 * slots["gradient_sum"]
        for name, slots in center.own_slots.items():
            slots["center"] = center.x(name)


class Together(Protocol):
    """Workers whose gradients make one step, once all of them are there."""

    def step(self, number: int, gradients: Gradients) -> bool:
        worker = self.workers[number]
        if worker.waits:
            raise RuntimeError(f"Worker {number} waits for the others to step")
        worker.gradients, worker.waits = gradients, True
        if not all(other.waits for other in self.workers):
            return False
        taken, s = [], types.SimpleNamespace(age=0)
        for rank, other in enumerate(self.workers):
            other.waits = False
            t = other.scalars(rank=rank, workers=len(self.workers))
            t.step = self.center.updates + 1
            if bool(self.method.takes_part(s, t)):
                taken.append(other.gradients)
        self._move_all(mean_of(taken))
        return True


class Stale(Protocol):
    """Gradients that are applied one by one, if the center has not moved too far since."""

    def read(self, number: int, gradients: Gradients) -> int:
        worker = self.workers[number]
        worker.gradients, worker.seen, worker.waits = gradients, self.global_step, True
        return worker.seen

    def apply(self, number: int) -> bool:
        worker = self.workers[number]
        if not worker.waits:
            raise RuntimeError(f"Worker {number} has no gradient to apply: call `read` first")
        worker.waits = False
        s = types.SimpleNamespace(age=self.global_step - worker.seen)
        if not self.method.takes_part(s, None):
            self.stale += 1
            return False
        self._move_all(worker.gradients)
        return True


class Tokens(Protocol):
    """Gradients that the center waits for, and tokens that let workers go on.

    A worker that waits may step all the same, as one with several threads: each takes a token.
    """

    def __init__(self, method: Any, workers: list[Site], center: Site, *how: Any):
        super().__init__(method, workers, center, *how)
        self.needed = method.replicas_to_aggregate or len(workers)
        total = method.total_num_replicas or len(workers)
        self.released = max(self.needed, total)
        check_tokens(how[1], self.needed, total)
        first = self.needed if how[1] == -1 else how[1]
        self.tokens: collections.deque[int] = collections.deque([0] * first)
        self.accumulated: list[Gradients] = []
        self._queue: list[Site] = []  # workers that wait, in their order
        for name in center.variables:
            for slot in method.slots(center.like(name)):
                center.own_slots[name][slot] = center.x(name)

    def step(self, number: int, gradients: Gradients) -> bool:
        worker = self.workers[number]
        accepted = worker.seen >= self.global_step
        if accepted:
            self.accumulated.append(gradients)
        worker.waits = True
        self._queue.append(worker)
        self._hand_out()
        return accepted

    def aggregate(self) -> int:
        count = len(self.accumulated)
        if count < self.needed:
            raise RuntimeError(f"The center waits for {self.needed} gradients. Received: {count}")
        self._move_all(mean_of(self.accumulated))
        self.accumulated = []
        for name, slots in self.center.own_slots.items():
            if slots:
                s = collections.namedtuple("Slots", slots)(**slots)  # type: ignore[misc]
                slots.update(self.method.after(None, self.center.x(name), s, None)[1])
        self.tokens.extend([self.global_step] * self.released)
        self._hand_out()
        return count

    def _hand_out(self) -> None:
        while self.tokens and self._queue:
            worker = self._queue.pop(0)
            worker.seen = self.tokens.popleft()
            worker.waits = any(other is worker for other in self._queue)


def mean_of(each: Sequence[Gradients]) -> Gradients:
    """Return the mean of gradients by name; of rows, over those gradients that have the row."""
    mean = {}
    for name in dict.fromkeys(name for one in each for name in one):
        given = [one[name] for one in each if name in one]
        rows = [rows_in(g) for g in given if isinstance(g, RowGradient)]
        count = ops.cast(len(given), "float32")
        mean[name] = mean_gradient(sum(map(dense, given)), sum(rows) if rows else None, count)
    return mean


def rows_in(gradient: Any) -> Any:
    """Return 1 for rows of a row gradient, else 0, shaped to broadcast over the variable."""
    rows = RowGradient.unchecked(gradient.values, gradient.indices, gradient.shape, named=True)
    return ops.cast(backend.row_mask(row_gradients.sum_repeated(rows, None)), "float32")
