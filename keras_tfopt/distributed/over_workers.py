"""The contract of an optimizer that several workers run together."""

from __future__ import annotations

from keras_tfopt.execution.exchanges.workers import WorkersEngine
from keras_tfopt.wrapper import Wrapper


class OverWorkers(WorkersEngine, Wrapper):
    """Base class of wrappers over several workers, each with variables of its own.

    A worker trains with the inner optimizer on its own part of the data. What it exchanges with
    the others, the hooks say; the connection is `exchange`, or what
    `keras_tfopt.distributed.connect` has made. The initial weights are those of worker 0, and the
    workers compare their models before the first step. A worker that is alone exchanges nothing
    and makes the steps of the inner optimizer, to the bit.

    ```python
    @keras_tfopt.register
    class Mean(keras_tfopt.distributed.OverWorkers):
        def updates_between(self):
            return 10

        def receive(self, total, x, s, t):
            return total / t.senders, {}
    ```

    Class attributes:
        shared: Names of slots that are the same on all workers.
        averages_gradients: Whether gradients are averaged over the workers before each step.
        moves_center: Whether the slot `gradient_sum` adds up gradients, and the slot `center` makes
            a step of the inner optimizer, with slots of its own, by what `receive` gives for
            `gradient_sum`.
        events: What `InProcess` makes of it: "together", "one by one", "stale" or "tokens".

    Args:
        inner_optimizer: As of `keras_tfopt.Wrapper`; accumulation in it makes one update of
            several calls, and all that is counted here is updates.
        exchange: A `keras_tfopt.distributed.Exchange`, which is not saved. Defaults to None: the
            one that is connected when the optimizer is built.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Hooks:
        updates_between: `() -> int or None`. Updates between exchanges.
        send: `(x, s, t) -> tensor`. What a worker adds to the sum, of the variable's shape.
        receive: `(total, x, s, t) -> x, {slot: value}`. From the sum over those who sent, whose
            number is `t.senders`, among `t.workers`.
        alone: `(x, s) -> {slot: value}`. Slots of a worker without others, where an exchange were
            due: as they would be among others who have the same variables.
        takes_part: `(s, t) -> bool`. Whether this worker's gradient counts; with
            `averages_gradients`. `s` holds the counters, `t` has `step`, `rank` and `workers`.
        check_workers: `(workers)`. Raises an error, before a step, if the arguments do not fit the
            number of workers. A model that several have trained can be loaded by one all the same.
        counts: `(s, missing) -> {counter: value}`, where gradients of so many did not count.

    All hooks of `keras_tfopt.Wrapper` are there, too.
    """

    unsaved = ("exchange",)
