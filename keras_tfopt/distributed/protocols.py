"""What happens at which event, for workers in one process."""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.distributed.site import Site
from keras_tfopt.execution import Like, RowGradient, mean_gradient, rows_in

Gradients = dict[str, Any]


class Protocol:
    """Events by the name of their method; a subclass defines those that it has."""

    def __init__(self, method: OverWorkers, workers: list[Site], center: Site):
        self.method, self.workers, self.center = method, workers, center
        self.global_step = 0

    def step(self, number: int, gradients: Gradients) -> Any:
        raise self._unknown("step")

    def read(self, number: int, gradients: Gradients) -> int:
        raise self._unknown("read")

    def apply(self, number: int) -> bool:
        raise self._unknown("apply")

    def aggregate(self) -> int:
        raise self._unknown("aggregate")

    def _unknown(self, event: str) -> Exception:
        return ValueError(
            f"{type(self.method).__name__} has other events here than `{event}`: it is of "
            f"{type(self).__name__}, see keras_tfopt.distributed.InProcess"
        )


class Exchanges(Protocol):
    """Workers that step alone and exchange with the center from time to time.

    All of them at once, each waiting for the others, or one by one.
    """

    def __init__(
        self, method: OverWorkers, workers: list[Site], center: Site, at_once: bool, values: Any
    ):
        super().__init__(method, workers, center)
        self.at_once = at_once
        for name, value in values.items():
            for slot, description in method.slots(like_of(center, name)).items():
                for site in workers if slot not in method.shared else [center]:
                    start = ops.cast(ops.convert_to_tensor(value), center.x(name).dtype)
                    is_copy = description.initial == "variable"
                    site.own_slots[name][slot] = ops.copy(start) if is_copy else 0 * start

    def step(self, number: int, gradients: Gradients) -> bool:
        worker, method = self.workers[number], self.method
        if worker.waits:
            missing = [n for n, other in enumerate(self.workers) if not other.waits]
            raise RuntimeError(f"Worker {number} waits for the workers {missing} to exchange")
        worker.gradients = {
            name: None if g is None else self._own_gradient(worker, name, g)
            for name, g in gradients.items()
        }
        for name, gradient in gradients.items():
            if method.moves_center and gradient is not None:
                slots = worker.own_slots[name]
                slots["gradient_sum"] = slots["gradient_sum"] + dense(gradient)
        worker.step(worker.gradients)
        between = method.updates_between() or 1
        if worker.calls % (worker.micro_steps * between):
            return False
        worker.waits = True
        if self.at_once and not all(other.waits for other in self.workers):
            return False
        self._exchange([other for other in self.workers if other.waits])
        return True

    def _own_gradient(self, worker: Site, name: str, gradient: Any) -> Any:
        """The gradient with what the method adds to it."""
        if type(self.method).before is OverWorkers.before:
            return gradient
        t = worker.scalars(workers=len(self.workers))
        return self.method.before(dense(gradient), worker.x(name), self._slots(worker, name), t)[0]

    def _slots(self, worker: Site, name: str) -> Any:
        slots = {**self.center.own_slots[name], **worker.own_slots[name]}
        return collections.namedtuple("Slots", slots)(**slots)  # type: ignore[misc]

    def _exchange(self, senders: list[Site]) -> None:
        method, results = self.method, []
        for name in self.center.variables:
            given = []
            for worker in senders:
                t = worker.scalars(
                    workers=len(self.workers),
                    senders=len(senders),
                    gradients=worker.micro_steps * (method.updates_between() or 1),
                )
                given.append((worker, worker.x(name), self._slots(worker, name), t))
            total = sum(method.send(x, s, t) for _, x, s, t in given)
            results += [(name, w, *method.receive(total, x, s, t)) for w, x, s, t in given]
        for name, worker, x, new in results:
            worker.put(name, x)
            for slot, value in new.items():
                owner = self.center if slot in method.shared else worker
                owner.own_slots[name][slot] = value
        for worker in senders:
            worker.waits = False
        self.global_step += 1
        if method.moves_center:
            self._move_center(senders)
        for name, slots in self.center.own_slots.items():
            self.center.put(name, slots["center"] if "center" in slots else senders[0].x(name))

    def _move_center(self, senders: list[Site]) -> None:
        """A step of the center by the mean gradient, from where the senders start again."""
        first, center = senders[0], self.center
        done = first.iterations // first.micro_steps
        # By itself, a worker lends the center its count of steps, which goes on there.
        center.optimizer.iterations.assign(done - 1 if self.at_once else done)
        center.step({name: s["gradient_sum"] for name, s in first.own_slots.items()})
        for worker in senders:
            if not self.at_once:
                worker.optimizer.iterations.assign(center.iterations * worker.micro_steps)
            for name, slots in worker.own_slots.items():
                worker.put(name, center.x(name))
                slots["gradient_sum"] = 0 * slots["gradient_sum"]
        for name in center.variables:
            center.own_slots[name]["center"] = center.x(name)


class Together(Protocol):
    """Workers whose gradients make one step, once all of them are there."""

    def __init__(self, method: OverWorkers, workers: list[Site], center: Site):
        super().__init__(method, workers, center)
        self.stale = 0

    def step(self, number: int, gradients: Gradients) -> bool:
        worker = self.workers[number]
        if worker.waits:
            raise RuntimeError(f"Worker {number} waits for the others to step")
        worker.gradients, worker.waits = gradients, True
        if not all(other.waits for other in self.workers):
            return False
        taken = []
        for rank, other in enumerate(self.workers):
            other.waits = False
            t = other.scalars(rank=rank, workers=len(self.workers))
            t.step = self.center.updates + 1
            s = types.SimpleNamespace(age=0)
            if bool(self.method.takes_part(s, t)):
                taken.append(other.gradients)
        self.center.step(mean_of(taken))
        self.global_step += 1
        put_everywhere(self.center, self.workers)
        return True


class Stale(Protocol):
    """Gradients that are applied one by one, if the center has not moved too far since."""

    def __init__(self, method: OverWorkers, workers: list[Site], center: Site):
        super().__init__(method, workers, center)
        self.stale = 0

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
        self.center.step(worker.gradients)
        self.global_step += 1
        put_everywhere(self.center, self.workers)
        return True


class Tokens(Protocol):
    """Gradients that the center waits for, and tokens that let workers go on.

    A worker that waits may step all the same, as one with several threads: each takes a token.
    """

    def __init__(self, method: Any, workers: list[Site], center: Site, initial_tokens: int):
        super().__init__(method, workers, center)
        self.needed = method.replicas_to_aggregate or len(workers)
        total = method.total_num_replicas or len(workers)
        self.released = max(self.needed, total)
        check_tokens(initial_tokens, self.needed, total)
        first = self.needed if initial_tokens == -1 else initial_tokens
        self.tokens = collections.deque([0] * first)
        self.accumulated: list[Gradients] = []
        self._queue: list[Site] = []  # workers that wait, in their order
        for name in center.variables:
            for slot in method.slots(like_of(center, name)):
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
        if len(self.accumulated) < self.needed:
            raise RuntimeError(
                f"The center waits for {self.needed} gradients. Received: {len(self.accumulated)}"
            )
        count = len(self.accumulated)
        self.center.step(mean_of(self.accumulated))
        self.accumulated = []
        for name, slots in self.center.own_slots.items():
            if slots:
                s = collections.namedtuple("Slots", slots)(**slots)  # type: ignore[misc]
                slots.update(self.method.after(None, self.center.x(name), s, None)[1])
        self.global_step += 1
        self.tokens.extend([self.global_step] * self.released)
        put_everywhere(self.center, self.workers)
        self._hand_out()
        return count

    def _hand_out(self) -> None:
        while self.tokens and self._queue:
            worker = self._queue.pop(0)
            worker.seen = self.tokens.popleft()
            worker.waits = any(other is worker for other in self._queue)


def check_tokens(number: int, needed: int, total: int) -> None:
    """Raises an error where the first step could not end, for want of tokens."""
    if number != -1 and number < max(needed - total, 0):
        raise ValueError(
            f"There are too few tokens to finish the first step: {needed - total} are needed. "
            f"Received: {number}"
        )


def mean_of(each: Sequence[Gradients]) -> Gradients:
    """The mean of gradients by name; of rows, over those who have a row."""
    mean = {}
    for name in dict.fromkeys(name for one in each for name in one):
        given = [one[name] for one in each if one.get(name) is not None]
        if not given:
            continue
        total = sum(dense(gradient) for gradient in given)
        rows = [rows_in(g) for g in given if isinstance(g, RowGradient)]
        count = ops.cast(len(given), "float32")
        mean[name] = mean_gradient(total, sum(rows) if rows else None, count)
    return mean


def dense(gradient: Any) -> Any:
    """A gradient as a tensor of the variable's shape."""
    if not isinstance(gradient, RowGradient):
        return gradient
    zeros = ops.zeros(gradient.shape, gradient.dtype)
    places = ops.expand_dims(gradient.indices, 1)
    return zeros + ops.scatter(places, gradient.values, gradient.shape)


def like_of(site: Site, name: str) -> Like:
    """The static facts of a variable."""
    variable = site.variables[name]
    return Like(tuple(variable.shape), str(site.x(name).dtype), name)


def put_everywhere(center: Site, workers: Sequence[Site]) -> None:
    """Gives workers, who have no variables of their own, those of the center."""
    for worker in workers:
        for name in worker.variables:
            worker.put(name, center.x(name))
