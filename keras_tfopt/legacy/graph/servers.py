"""Make variables and queues on parameter servers, which workers of TensorFlow 1 graphs share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework

from keras_tfopt.legacy.graph.backend import dtype_of, in_a_graph, native, shape_of

v1 = tf.compat.v1

# The scope of variables that all workers share.
CENTER = "global_center_variable"
# The scope of variables in graphs, by the slot that eager workers have instead.
_SCOPES = {
    "": CENTER,
    "center": CENTER,
    "gradient_sum": "grad_variable",
    "local_center": "local_center_variable",
}


def make_variable(
    getter: Callable[..., Any],
    worker_device: str,
    copies: Iterable[tuple[str, dict[Any, Any]]],
    *args: Any,
    **arguments: Any,
) -> Any:
    """Make a trainable variable on the worker, with copies in further scopes; return it.

    Variables that are not trainable have no copies. Local ones are on the worker.

    Args:
        getter: Function that makes a variable, from its name and further arguments.
        worker_device: The device of the worker.
        copies: Pairs of a slot that eager workers have, and a dictionary for the copies by the
            worker's variables. The device function of the graph places a center, on a parameter
            server.
        *args: Name of the variable.
        **arguments: Further arguments of `tf.compat.v1.get_variable`.
    """
    if not in_a_graph():
        return getter(*args, **arguments)
    name = args[0] if args else arguments.pop("name")
    local = v1.GraphKeys.LOCAL_VARIABLES
    if not arguments["trainable"]:
        is_local = local in (arguments["collections"] or ())
        with tf.device(worker_device) if is_local else contextlib.nullcontext():
            return getter(name, **arguments)
    arguments = {**arguments, "collections": [local]}
    with tf.device(worker_device):
        own = getter(name, **arguments)
    if arguments["reuse"] is True:
        return own
    arguments["trainable"] = False
    for slot, known in copies:
        scope = _SCOPES[slot]
        copy_name = f"{scope}/{name}"
        if scope == CENTER:
            shared = {**arguments, "collections": [v1.GraphKeys.GLOBAL_VARIABLES]}
            copy = getter(copy_name, **shared)
        else:
            with tf.device(worker_device):
                copy = getter(copy_name, **arguments)
        known.update(zip(_parts(own), _parts(copy), strict=True))
    return own


def _parts(variable: Any) -> list[Any]:
    """Return the variable, or those that a partitioned one consists of."""
    return [variable] if hasattr(variable, "initializer") else list(variable)


def local_variables(local: bool = True) -> contextlib.AbstractContextManager:
    """Return a context in which variables are local to the worker, which initializes them."""
    if not local:
        return contextlib.nullcontext()

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        given = arguments.get("collections") or [v1.GraphKeys.GLOBAL_VARIABLES]
        theirs = {v1.GraphKeys.GLOBAL_VARIABLES: v1.GraphKeys.LOCAL_VARIABLES}
        return next_creator(**{**arguments, "collections": [theirs.get(c, c) for c in given]})

    return v1.variable_creator_scope(create)


def fetch(variable: Any) -> Any:
    """Return the current value of a variable that other workers write, too.

    A reference variable's own tensor may be older: the parameter server may have sent it before.
    """
    return native(variable).read_value()


def add(variable: Any, value: Any, use_locking: bool = False) -> Any:
    """Return an operation that adds to a variable."""
    return v1.assign_add(variable, value, use_locking=use_locking)


def count(counter: Any) -> Any:
    """Return an operation that adds one to a count; None if there is no count."""
    if counter is None:
        return None
    with framework.colocate_with(counter):
        return v1.assign_add(counter, tf.ones([], dtype_of(counter)))


def initializing_hook(make: Callable[[], Any]) -> Any:
    """Return a hook that adds an operation to the graph and runs it when a session has begun."""

    class Initializing(v1.train.SessionRunHook):  # type: ignore[name-defined]
        def begin(self) -> None:
            self._operation = make()

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self._operation)

    return Initializing()


def barrier(before: Sequence[Any], shared: Any, worker: int, workers: int) -> Any:
    """Return an operation that waits until all workers have reached it.

    Args:
        before: Operations that come first.
        shared: Variable on the parameter server where the workers meet.
        worker: Number of this worker.
        workers: How many there are.
    """
    with framework.colocate_with(shared):
        queues = [
            v1.FIFOQueue(workers, [tf.bool], [()], shared_name=f"variable_init_sync_queue{number}")
            for number in range(workers)
        ]
        with tf.control_dependencies(before):
            told = [q.enqueue(False) for number, q in enumerate(queues) if number != worker]
            waits = queues[worker].dequeue_many(workers - 1)
    return tf.group(*told, waits)


class Meeting:
    """Accumulators and a queue on parameter servers, by which workers average their variables.

    Make it outside of `tf.cond`: its functions may be graphs that do not know the other devices.

    Args:
        variables: Variables of this worker.
        centers: Variables on parameter servers, one for each.
        global_step: Variable that counts the means.
        workers: How many workers there are.
        is_chief: Whether this is the worker that takes the mean, for which the others wait.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        centers: Sequence[Any],
        global_step: Any,
        workers: int,
        is_chief: bool,
    ):
        self._variables, self._centers, self._global_step = variables, centers, global_step
        self._workers, self._is_chief = workers, is_chief
        self._accumulators = []
        for variable, center in zip(variables, centers, strict=True):
            with framework.colocate_with(center):
                name = f"{center.name}/var_accum"
                self._accumulators.append(
                    v1.ConditionalAccumulator(
                        dtype_of(variable), shape_of(variable), shared_name=name
                    )
                )
        with framework.colocate_with(global_step):
            self._queue = v1.FIFOQueue(-1, [tf.bool], [()], shared_name="sync_queue")

    def mean(self) -> Any:
        """Return an operation that sets the centers to the mean of all workers' variables."""
        step = tf.cast(fetch(self._global_step), "int64")
        given = [
            accumulator.apply_grad(fetch(variable), local_step=step)
            for accumulator, variable in zip(self._accumulators, self._variables, strict=True)
        ]
        with tf.control_dependencies(given):
            if not self._is_chief:
                return self._queue.dequeue()
            means = [one.take_grad(self._workers) for one in self._accumulators]
        moved = [v1.assign(c, mean) for c, mean in zip(self._centers, means, strict=True)]
        with tf.control_dependencies([*moved, count(self._global_step)]):
            return self._queue.enqueue_many([tf.fill([self._workers - 1], False)])
