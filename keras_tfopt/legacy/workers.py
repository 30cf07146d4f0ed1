"""The verbs of optimizers over several workers, in eager programs."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NoReturn

from keras import ops

from keras_tfopt.checks import check_bool, check_integer
from keras_tfopt.engine import check_traceable, outside_compiler, path_of, slots_of, variables_of
from keras_tfopt.legacy.eager import WrapperVerbs, step_around
from keras_tfopt.legacy.optimizer import Pairs
from keras_tfopt.legacy.saver import SwappingSaver, check_moved, check_saver_arguments
from keras_tfopt.legacy.select import running
from keras_tfopt.legacy.verb_arguments import check_counter, checked_pairs, count_up


def check_tokens(number: int, needed: int, total: int) -> None:
    """Raise an error if there are too few tokens for the first step to end."""
    if number != -1 and number < max(needed - total, 0):
        raise ValueError(
            f"There are too few tokens to finish the first step: {needed - total} are needed. "
            f"Received: {number}"
        )


class CustomGetter:
    """The `custom_getter` of a `variable_scope` in a graph, which makes the variables of a worker.

    A trainable variable belongs to the worker, and so do the copies that only the worker needs. The
    center is on the parameter server, in the scope `global_center_variable`. Each map has the
    copies by variable.

    In eager code a worker has its own variables anyway, and copies are slots of the optimizer. A
    call of the object calls `getter`. After the first step of the optimizer that was given this
    object, each map has the slots by the path of the variable.

    Args:
        worker_device: The device of the worker, such as "/job:worker/task:0".
    """

    maps: ClassVar[dict[str, str]] = {}  # names of attributes to those of slots

    def __init__(self, worker_device: str):
        if not isinstance(worker_device, str):
            raise TypeError(
                f"Argument `worker_device` must be a string. Received: {worker_device!r}"
            )
        self._worker_device = worker_device
        for name in self.maps:
            setattr(self, name, {})

    def __call__(self, getter: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the variable that `getter` makes; in a graph, make its copies as well."""
        copies = [(slot, getattr(self, name)) for name, slot in self.maps.items()]
        return running.make_variable(getter, self._worker_device, copies, *args, **kwargs)

    def _fill(self, optimizer: Any) -> None:
        for variable in variables_of(optimizer):
            slots = {"": variable, **slots_of(optimizer, variable)}
            for name, slot in self.maps.items():
                getattr(self, name)[path_of(variable)] = slots[slot]


class AGNCustomGetter(CustomGetter):
    """`_global_map` has the center, `_grad_map` the sums of gradients.

    See `CustomGetter`; in graphs, sums are in the scope `grad_variable`.

    Args:
        worker_device: The device of the worker.
    """

    maps: ClassVar = {"_global_map": "center", "_grad_map": "gradient_sum"}


class ElasticAverageCustomGetter(CustomGetter):
    """`_global_map` has the center, `_local_map` the center that the worker saw last.

    See `CustomGetter`; in graphs, the latter is in the scope `local_center_variable`.

    Args:
        worker_device: The device of the worker.
    """

    maps: ClassVar = {"_global_map": "center", "_local_map": "local_center"}


class ModelAverageCustomGetter(CustomGetter):
    """`_local_2_global` has the center in graphs, and in eager code the variables, their mean.

    See `CustomGetter`.

    Args:
        worker_device: The device of the worker.
    """

    maps: ClassVar = {"_local_2_global": ""}


class OverWorkers(WrapperVerbs):
    """Base class of optimizers over several workers.

    `get_slot`, `get_slot_names` and `variables` give the state of the optimizer inside. The state
    of the exchange is in slots of `optimizer.keras`.
    """

    _getter: str | None = None
    _getter_class: type = CustomGetter
    _given_getter: Any = None
    _needs_step = False  # whether `global_step` must be given
    _workers: int | None = None
    _applied = False

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for argument in ("is_chief", "synchronous"):
            if argument in arguments:
                setattr(self, f"_{argument}", check_bool(argument, arguments.pop(argument)))
        if "num_worker" in arguments:
            self._workers = check_integer("num_worker", arguments.pop("num_worker"), 1)
        if self._getter is not None:
            self._given_getter = arguments.pop(self._getter)
            if not isinstance(self._given_getter, (self._getter_class, type(None))):
                raise TypeError(
                    f"Argument `{self._getter}` must be None or of the class "
                    f"{self._getter_class.__name__}. Received: {self._given_getter!r}"
                )
        return arguments

    @outside_compiler
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Take a step of this worker, with the exchange that may be due.

        Args:
            grads_and_vars: As of `Optimizer.apply_gradients`.
            global_step: Scalar variable that counts exchanges, or steps that all make together.
            name: Without meaning.

        Raises:
            ValueError: if there are no gradients, `global_step` is missing where it is needed, or
                the number of workers is not that of the arguments.
        """
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        self._check_global_step(global_step)
        check_traceable("apply_gradients")
        self._check_workers()
        before = self._count_before()
        if self._opt._steps_with_keras:
            verb = functools.partial(self._opt.apply_gradients, name=name)
            step_around(self._optimizer, verb, pairs, self._covered(pairs))
        else:
            # On TensorFlow, reading `keras` brings the Keras optimizer up to date, which steps.
            _ = self._opt.keras
            self._step(pairs)
        self._applied = True
        if self._given_getter is not None:
            self._given_getter._fill(self._optimizer)
        return self._result(global_step, before)

    def _check_global_step(self, global_step: Any) -> None:
        if self._needs_step and global_step is None:
            raise ValueError(
                f"Argument `global_step` of {type(self).__name__}.apply_gradients must be an "
                "integer variable. Received: None"
            )

    def _check_workers(self) -> None:
        connected = self._optimizer.exchange.size
        if self._workers not in (None, connected):
            raise ValueError(
                f"Argument `num_worker` must be the number of workers that are connected, "
                f"{connected}. Received: {self._workers}. Workers of several processes call "
                "keras_tfopt.distributed.connect() first"
            )

    def _count_before(self) -> Any:
        """Return the count before a step."""
        return self._optimizer.exchanges()

    def _result(self, global_step: Any, before: Any) -> Any:
        return count_up(global_step, self._optimizer.exchanges() - before)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the state of a variable in the optimizer inside; if there is none, in this one."""
        found = self._opt.get_slot(var, name)
        return super().get_slot(var, name) if found is None else found

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots of the optimizer inside."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Any]:
        """Return the variables that hold the state of the optimizer inside."""
        return self._opt.variables()

    def _check_applied(self, method: str) -> None:
        if not self._applied:
            raise ValueError(f"`{method}` should be called after `apply_gradients`")

    def _no_hook(self) -> NoReturn:
        raise NotImplementedError(
            "There are no sessions, so no hooks of sessions: what this one did is done in the "
            "first step. Call keras_tfopt.distributed.connect() at the start of each worker"
        )


class WithCenter(OverWorkers):
    """AGN and elastic averaging: workers around a center."""

    def get_init_op(self, task_index: int) -> None:
        """Do nothing: in its first step a worker gets the weights of worker 0 by itself.

        Args:
            task_index: Without meaning; an integer >= 0.
        """
        check_integer("task_index", task_index, 0)

    def make_session_run_hook(self, is_chief: bool, task_index: int) -> NoReturn:
        """Raise an error: there are no sessions. Call `keras_tfopt.distributed.connect`.

        Args:
            is_chief: Whether this is worker 0.
            task_index: Number of the worker.

        Raises:
            NotImplementedError: always.
        """
        self._no_hook()


class GradientSums(WithCenter):
    """The verbs of `AGNOptimizer`."""

    _inside, _getter, _getter_class = "optimizer", "custom_getter", AGNCustomGetter


class Elastic(WithCenter):
    """The verbs of `ElasticAverageOptimizer`, and a saver for its center."""

    _getter, _getter_class = "ea_custom_getter", ElasticAverageCustomGetter

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> SwappingSaver:
        """Return a saver that writes the center under the names of the variables.

        The worker's own values go under the name of the variable with `/local` appended.

        Args:
            var_list: Variables to save, a list or a dictionary of them by name. None is all.
            name: Name of the saver.
            **kwargs: What `tf.train.Saver` takes, without meaning here.

        Raises:
            RuntimeError: before the first step, when there is no center.
            ValueError: if a variable has no center.
        """
        check_saver_arguments(kwargs)
        moved = variables_of(self._optimizer)
        check_moved(moved, "is no center")
        center_of = functools.partial(self._own_slot, name="center")
        return SwappingSaver(var_list, moved, center_of, name, suffix="local", averages="a center")


class MeansOfModels(OverWorkers):
    """The verbs of `ModelAverageOptimizer`."""

    _getter, _getter_class = "ma_custom_getter", ModelAverageCustomGetter
    _needs_step = True

    def get_init_op(self) -> None:
        """Do nothing: in its first step a worker gets the weights of worker 0 by itself."""

    def make_session_run_hook(self) -> NoReturn:
        """Raise an error: there are no sessions. Call `keras_tfopt.distributed.connect`.

        Raises:
            NotImplementedError: always.
        """
        self._no_hook()


class StaleGradients(OverWorkers):
    """The verbs of `DropStaleGradientOptimizer`.

    The age of a gradient is the number of steps since the last `compute_gradients`.
    """

    _steps = 0  # with gradients that counted, as far as this is known
    _read: int | None = None

    @outside_compiler
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Call that of `opt`; steps between it and `apply_gradients` make gradients stale."""
        pairs = super().compute_gradients(*args, **kwargs)
        self._read = self._steps
        return pairs

    def _count_before(self) -> Any:
        age = 0 if self._read is None else self._steps - self._read
        if age:
            self._optimizer.age = age
        return self._done()

    def _done(self) -> Any:
        return ops.convert_to_tensor(self._optimizer.iterations) + 0

    def _result(self, global_step: Any, before: Any) -> Any:
        new = self._done() - before
        if self._optimizer.known_count("stale") is not None:  # nothing is being compiled
            self._steps += int(new)
        count_up(global_step, new)
        return ops.cast(self._optimizer.count_now("stale"), "float32")


class Replicas(OverWorkers):
    """The verbs of `SyncReplicasOptimizer`."""

    _needs_step = True

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._changed(arguments)
        if arguments["total_num_replicas"] is None:
            arguments["total_num_replicas"] = arguments["replicas_to_aggregate"]
        averages = arguments["variable_averages"]
        if averages is None:
            arguments["variables_to_average"] = None
        else:
            arguments["variable_averages"] = getattr(averages, "_decay", averages)
        return arguments

    def get_chief_queue_runner(self) -> NoReturn:
        """Raise an error: there are no queues, and workers exchange with each other.

        Raises:
            ValueError: before `apply_gradients`.
            NotImplementedError: after it.
        """
        self._check_applied("get_chief_queue_runner")
        raise NotImplementedError(
            "There are no queues to run: workers exchange with each other in `apply_gradients`. "
            "Call keras_tfopt.distributed.connect() at the start of each worker"
        )

    def get_init_tokens_op(self, num_tokens: int = -1) -> None:
        """Do nothing: there are no tokens, as workers wait for each other in each step.

        Args:
            num_tokens: Checked as in the original; -1, or an integer >= 0.

        Raises:
            ValueError: before `apply_gradients`, or if there were too few tokens for a first step.
        """
        self._check_applied("get_init_tokens_op")
        check_integer("num_tokens", num_tokens, -1)
        method = self._optimizer
        check_tokens(num_tokens, method.replicas_to_aggregate, method.total_num_replicas)

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> NoReturn:
        """Raise an error: there are no sessions. Call `keras_tfopt.distributed.connect`.

        Args:
            is_chief: Whether this is worker 0.
            num_tokens: Without meaning.

        Raises:
            NotImplementedError: always.
        """
        self._no_hook()
