"""Optimizers over workers in graphs of TensorFlow 1: parameter servers, hooks, queues.

A worker is a process with a graph of its own. What workers share are variables, accumulators and
queues on a parameter server, found by their names.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import tensorflow as tf
from keras import ops

from keras_tfopt.checks import check_bool, check_integer, check_number
from keras_tfopt.legacy import workers
from keras_tfopt.legacy.arguments import as_in_the_original
from keras_tfopt.legacy.graph import backend, savers, servers
from keras_tfopt.legacy.graph.backend import native, read
from keras_tfopt.legacy.graph.wrapping import WrapperVerbs
from keras_tfopt.legacy.optimizer import Pairs
from keras_tfopt.legacy.verb_arguments import check_counter

v1 = tf.compat.v1


class _AroundServers(WrapperVerbs, workers.OverWorkers):
    """A worker in a graph: steps of its own, and an exchange after so many of them."""

    _has_hooks = False
    _period_argument: ClassVar[str] = "communication_period"
    _getter: ClassVar[str]  # type: ignore[misc, assignment]
    _is_chief = False

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        getter = arguments[self._getter]
        if not isinstance(getter, self._getter_class):
            raise TypeError(
                f"Argument `{self._getter}` must be of the class {self._getter_class.__name__} in "
                f"graphs: it makes the variables. Received: {getter!r}"
            )
        period = arguments[self._period_argument]
        self._period = check_integer(self._period_argument, period, 1)
        local = [v1.GraphKeys.LOCAL_VARIABLES]
        self._local_step = v1.get_variable(
            "local_step", initializer=0, trainable=False, collections=local
        )
        return workers.OverWorkers._changed(self, arguments)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Take a step of this worker, and after the last one of a period an exchange.

        Args:
            grads_and_vars: As of `Optimizer.apply_gradients`.
            global_step: Variable that counts the exchanges of all workers.
            name: Name of the operation returned.
        """
        given, pairs = self._checked(grads_and_vars)
        pairs = [(g, v) for g, v in pairs if g is not None]
        variables = [variable for _, variable in pairs]
        check_counter(global_step)
        self._check_global_step(global_step)
        self._check_copies(variables)
        # The slots of the chief are global, so that they are saved. Other workers have local ones.
        with servers.local_variables(not self._is_chief):
            done = self._opt.apply_gradients(given)
        with backend.following([done, *self._note(pairs)]):
            count = backend.value_of(servers.add(self._local_step, 1))
            due = ops.equal(count % self._period, 0)
            counter = native(global_step)
            self._prepare_exchange(variables, counter)
            exchange = functools.partial(self._exchange, variables, counter)
            exchanged = backend.conditional(due, variables[0], exchange, backend.group)
        return backend.group(exchanged, name=name or self._name)

    def _note(self, pairs: Pairs) -> list[Any]:
        """Return further operations with the gradients of a step."""
        return []

    def _prepare_exchange(self, variables: list[Any], global_step: Any) -> None:
        """Make accumulators and queues of an exchange, outside of its condition."""

    def _exchange(self, variables: list[Any], global_step: Any) -> Any:
        raise NotImplementedError

    def _maps(self) -> list[Any]:
        """Return the maps of the getter: the center, then copies that only this worker has."""
        return [getattr(self._given_getter, name) for name in self._given_getter.maps]

    def _centers(self, variables: list[Any]) -> list[Any]:
        return [self._maps()[0][variable] for variable in variables]

    def _copies(self, variables: list[Any]) -> list[Any]:
        return [self._maps()[1][variable] for variable in variables]

    def _check_copies(self, variables: list[Any]) -> None:
        for known in self._maps():
            lacking = [variable.name for variable in variables if variable not in known]
            if lacking:
                raise ValueError(
                    f"Variables must be made by `get_variable` in a `variable_scope` that has the "
                    f"`custom_getter` of {type(self).__name__}. Received: {lacking[:8]}"
                )

    def _pull(self, variables: list[Any]) -> list[Any]:
        """Return operations that give the worker's variables the values of the center."""
        return _written(variables, map(servers.fetch, self._centers(variables)))

    def _initialized(self, zeros: bool = False) -> Any:
        """Return an operation that gives the worker the values of the center.

        Args:
            zeros: Whether copies that only this worker has become zeros, not the center's values.
        """
        center, *others = self._maps()
        variables = [v for v in v1.trainable_variables() if v in center]
        if not variables:
            raise ValueError(
                f"There are no variables that the `{self._getter}` of {type(self).__name__} has "
                "made"
            )
        values = [servers.fetch(one) for one in self._centers(variables)]
        done = _written(variables, values)
        if others:
            values = [ops.zeros_like(value) for value in values] if zeros else values
            done += _written(self._copies(variables), values)
        return backend.group(*done)


def _written(variables: Any, values: Any) -> list[Any]:
    return [backend.write(*pair) for pair in zip(variables, values, strict=True)]


class _WithCenterInGraph(_AroundServers):
    """AGN and elastic averaging."""

    def get_init_op(self, task_index: int) -> Any:
        """Return an operation that gives worker number `task_index` the values of the center."""
        check_integer("task_index", task_index, 0)
        return self._initialized(zeros=True)

    def make_session_run_hook(self, is_chief: bool, task_index: int) -> Any:
        """Return a hook that runs `get_init_op(task_index)` when a session begins."""
        check_bool("is_chief", is_chief)
        return servers.initializing_hook(lambda: self.get_init_op(task_index))


class GradientSumsInGraph(_WithCenterInGraph, workers.GradientSums):
    """`AGNOptimizer`: the mean of a period's gradients moves the center."""

    _inside = "optimizer"

    def _note(self, pairs: Pairs) -> list[Any]:
        sums = self._copies([variable for _, variable in pairs])
        gradients = [tf.convert_to_tensor(g) for g, _ in pairs]
        return [servers.add(s, g) for s, g in zip(sums, gradients, strict=True)]

    def _exchange(self, variables: list[Any], global_step: Any) -> Any:
        sums = self._copies(variables)
        means = [servers.fetch(one) / self._period for one in sums]
        pairs = list(zip(means, self._centers(variables), strict=True))
        with backend.following([self._opt.apply_gradients(pairs)]):
            pulled = self._pull(variables)
            cleared = _written(sums, map(ops.zeros_like, means))
            return backend.group(*pulled, *cleared, servers.count(global_step))


class ElasticInGraph(_WithCenterInGraph, workers.Elastic):
    """`ElasticAverageOptimizer`: a worker and the center pull each other."""

    _synchronous: bool
    _workers: int

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._changed(arguments)
        rate, rho = arguments["moving_rate"], arguments["rho"]
        rate = 0.9 / self._period / self._workers if rate is None else rate
        self._moving_rate = check_number("moving_rate", rate, 0, 1)
        self._rho = self._moving_rate / self._learning_rate_of_opt() if rho is None else rho
        return arguments

    def _learning_rate_of_opt(self) -> Any:
        given = getattr(self._opt, "_arguments", {})
        rate = given.get("learning_rate", getattr(self._opt, "_learning_rate", None))
        rate = rate() if callable(rate) else rate
        if rate is None:
            raise ValueError(
                "Argument `rho` must be given: it is moving_rate / learning_rate, and "
                f"that of {type(self._opt).__name__} is not known. Received: None"
            )
        return rate

    def compute_gradients(
        self, loss: Any, var_list: Any = None, *args: Any, **kwargs: Any
    ) -> Pairs:
        """Compute gradients of the loss and `rho / 2` times the squared distance from the center.

        The arguments are those of `Optimizer.compute_gradients`.
        """
        variables = [native(v) for v in var_list] if var_list else v1.trainable_variables()
        self._check_copies(variables)
        pairs = zip(variables, self._copies(variables), strict=True)
        distance = tf.add_n([tf.nn.l2_loss(variable - seen) for variable, seen in pairs])
        total = (loss() if callable(loss) else loss) + self._rho * distance
        return self._opt.compute_gradients(total, variables, *args, **kwargs)

    def _exchange(self, variables: list[Any], global_step: Any) -> Any:
        centers = self._centers(variables)
        seen = _written(self._copies(variables), map(servers.fetch, centers))
        fetched = [backend.value_of(one) for one in seen]
        moves = [
            self._moving_rate * (servers.fetch(v) - center)
            for v, center in zip(variables, fetched, strict=True)
        ]
        with backend.following(moves):
            pulled = [servers.add(v, -move) for v, move in zip(variables, moves, strict=True)]
            pushed = [
                servers.add(c, move, self._use_locking)
                for c, move in zip(centers, moves, strict=True)
            ]
            return backend.group(*pulled, *pushed, servers.count(global_step))

    def get_init_op(self, task_index: int) -> Any:
        """Return the operation; with `synchronous`, it waits for the other workers."""
        check_integer("task_index", task_index, 0)
        done = self._initialized()
        if not self._synchronous:
            return done
        center = next(iter(self._maps()[0].values()))
        return servers.barrier([done], center, task_index, self._workers)

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """Return a `tf.compat.v1.train.Saver` of the center, under the names of the variables.

        Args:
            var_list: Variables to save, a list or a dictionary of them by name. None is all that
                are trainable.
            name: Name of the saver.
            **kwargs: Arguments of `tf.compat.v1.train.Saver`.

        Raises:
            RuntimeError: if the getter has made no variables yet.
        """
        centers = self._maps()[0]
        if not centers:
            raise RuntimeError(
                "There is no center: make the variables in a `variable_scope` that has the "
                "`custom_getter` first"
            )
        return savers.saver_of_others(centers, var_list, name, kwargs)


class MeansInGraph(_AroundServers, workers.MeansOfModels):
    """`ModelAverageOptimizer`: workers wait for each other and take the mean of their variables."""

    _period_argument = "interval_steps"
    _workers: int

    def _prepare_exchange(self, variables: list[Any], global_step: Any) -> None:
        centers = self._centers(variables)
        self._meeting = servers.Meeting(
            variables, centers, global_step, self._workers, self._is_chief
        )

    def _exchange(self, variables: list[Any], global_step: Any) -> Any:
        with backend.following([self._meeting.mean()]):
            return backend.group(*self._pull(variables))

    def get_init_op(self) -> Any:
        """Return an operation that gives the worker the values of the center."""
        return self._initialized()

    def make_session_run_hook(self) -> Any:
        """Return a hook that runs `get_init_op` when a session begins."""
        return servers.initializing_hook(self.get_init_op)


def _of_tensorflow(name: str) -> Any:
    """Return the method of this name of TensorFlow's optimizer."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._opt, name)(*args, **kwargs)

    return functools.wraps(getattr(v1.train.SyncReplicasOptimizer, name))(call)


class ReplicasInGraph(WrapperVerbs, workers.Replicas):
    """`SyncReplicasOptimizer`: that of TensorFlow, around any optimizer."""

    _has_hooks = False

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if name != "opt"}
        self._opt = v1.train.SyncReplicasOptimizer(self._opt, **given)
        return arguments

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Give a gradient for the next step of all; see `tf.compat.v1.train`."""
        _, pairs = self._checked(grads_and_vars)
        return self._opt.apply_gradients(pairs, native(global_step), name)

    get_chief_queue_runner = _of_tensorflow("get_chief_queue_runner")
    get_init_tokens_op = _of_tensorflow("get_init_tokens_op")
    make_session_run_hook = _of_tensorflow("make_session_run_hook")
    # Operations: the chief runs the first, each worker the second once the third says so.
    chief_init_op = property(lambda self: self._opt.chief_init_op)
    local_step_init_op = property(lambda self: self._opt.local_step_init_op)
    ready_for_local_init_op = property(lambda self: self._opt.ready_for_local_init_op)


class StaleInGraph(WrapperVerbs, workers.StaleGradients):
    """`DropStaleGradientOptimizer`: steps that leave out old gradients.

    `_local_step` is the global step at which gradients were computed. It can be fed, so that
    gradients that were fetched before can be applied later.
    """

    _has_hooks = False
    _local_step: Any = None

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with as_in_the_original(self._kind, self._row):
            self._staleness = check_integer("staleness", arguments["staleness"], 0)
        return arguments

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Call that of `opt`, after noting the step."""
        loss, *rest = args or (kwargs.pop("loss"),)
        self._local_step = ops.cast(read(v1.train.get_or_create_global_step()), "int64") + 0
        with backend.following([self._local_step]):
            if not callable(loss):
                loss = loss + ops.zeros_like(loss)
            return self._opt.compute_gradients(loss, *rest, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Take a step, unless the gradients are older than `staleness`.

        Args:
            grads_and_vars: As of `Optimizer.apply_gradients`.
            global_step: Integer variable that counts the steps that are made.
            name: Name of the operation returned.

        Returns:
            The number of gradients dropped so far, a tensor.
        """
        if global_step is None:
            raise ValueError(
                "Argument `global_step` must be the variable that counts steps: the age of "
                "gradients is known by it. Received: None"
            )
        given, pairs = self._checked(grads_and_vars)
        check_counter(global_step)
        if self._local_step is None:
            raise RuntimeError(
                "The age of these gradients is not known: get them by `compute_gradients` of this "
                "optimizer"
            )
        first = min((v for g, v in pairs if g is not None), key=lambda v: v.name)
        with backend.lifted():
            dropped = self._create_non_slot_variable(0.0, "stale_counter", first)

        def step() -> Any:
            done = self._opt.apply_gradients(given, global_step=native(global_step))
            with backend.following([done]):
                return ops.zeros((), "float32")

        values = [g.values if hasattr(g, "values") else g for g, _ in pairs if g is not None]
        with backend.following(values):
            age = ops.cast(read(native(global_step)), "int64") - self._local_step
            counts = ops.less_equal(age, self._staleness)
            more = backend.conditional(counts, first, step, lambda: ops.ones((), "float32"))
            written = backend.write(dropped, read(dropped) + more)
            return tf.identity(written, name=name or self._name)


# The class that works in graphs, by the class for eager code.
_IN_GRAPHS: dict[type, type] = {
    workers.Elastic: ElasticInGraph,
    workers.GradientSums: GradientSumsInGraph,
    workers.MeansOfModels: MeansInGraph,
    workers.Replicas: ReplicasInGraph,
    workers.StaleGradients: StaleInGraph,
}


@functools.cache
def form_in_graphs(cls: type) -> type:
    """Return the subclass of a class over workers that works in graphs."""
    form = next(form for eager, form in _IN_GRAPHS.items() if issubclass(cls, eager))
    if issubclass(cls, form):
        return cls
    return type(cls.__name__, (cls, form), {"__doc__": cls.__doc__, "__module__": cls.__module__})
