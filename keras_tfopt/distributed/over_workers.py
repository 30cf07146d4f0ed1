"""The contract of an optimizer that several workers run together."""

from __future__ import annotations

from keras_tfopt.distributed.exchanges.workers import WorkersEngine
from keras_tfopt.wrapper import Wrapper


class OverWorkers(WorkersEngine, Wrapper):
    """Base class of wrappers over several workers, each with variables of its own.

    A worker trains with the inner optimizer on its own part of the data. The hooks say what it
    exchanges with the others. The connection is `exchange`, or the one that
    `keras_tfopt.distributed.connect` has made. The initial weights are those of worker 0, and the
    workers compare their models before the first step. A worker without others exchanges nothing:
    its steps are those of the inner optimizer, bit by bit.

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
        moves_center: Whether the slot `gradient_sum` adds up gradients, and each exchange moves the
            slot `center` by a step of an optimizer like the inner one. The gradient of that step is
            the value that `receive` returns for `gradient_sum`.

    Args:
        inner_optimizer: As in `keras_tfopt.Wrapper`. If it accumulates gradients, several calls
            make one update; all counts here are of updates.
        exchange: A `keras_tfopt.distributed.Exchange`, which is not saved. Defaults to None: the
            one that is connected when the optimizer is built.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Hooks:
        updates_between: `() -> int or None`. Updates from one exchange to the next.
        send: `(x, s, t) -> tensor`. The worker's part of the sum, of the variable's shape.
        receive: `(total, x, s, t) -> x, {slot: value}`. New values from the sum. `t.senders` of
            `t.workers` workers have sent something.
        alone: `(x, s) -> {slot: value}`. Slots of a worker without others, after each period. They
            are as if there were others with the same variables.
        takes_part: `(s, t) -> bool`. Whether this worker's gradient counts; used with
            `averages_gradients`. `s` holds the counters, `t` has `step`, `rank` and `workers`.
        check_workers: `(workers)`. Raises an error, before a step, if the arguments do not fit the
            number of workers. A single worker may load a model that several have trained.
        counts: `(s, missing) -> {counter: value}`. Counters after a step in which the gradients of
            `missing` workers did not count.

    All hooks of `keras_tfopt.Wrapper` exist, too.
    """

    unsaved = ("exchange",)
