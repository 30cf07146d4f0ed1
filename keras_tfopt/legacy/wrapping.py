"""Verbs of optimizers around another one, whose own verbs they call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution import (
    check_traceable,
    is_variable,
    outside_compiler,
    prepare,
    slots_of,
    variables_of,
)
from keras_tfopt.execution.verb_arguments import check_counter
from keras_tfopt.legacy.arguments import OriginalAttributes, build_optimizer, chosen_dims
from keras_tfopt.legacy.optimizer import Optimizer, Pairs, checked_pairs
from keras_tfopt.legacy.saver import (
    SwappingSaver,
    check_moved,
    check_saver_arguments,
    eager_saver,
)
from keras_tfopt.legacy.table import Row


class Wrapping(Optimizer):
    """An optimizer around `opt`, whose compute_gradients and apply_gradients it calls.

    Gradients of rows come to them as `keras_tfopt.RowGradient`.
    """

    _inside = "opt"  # the argument for the optimizer inside

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        arguments = dict(arguments)
        opt = arguments[self._inside]
        if isinstance(opt, keras.optimizers.Optimizer):
            opt = Optimizer(opt)
        if not isinstance(opt, Optimizer):
            raise TypeError(
                f"Argument `{self._inside}` must be an optimizer of keras_tfopt.legacy or one of "
                f"Keras. Received: {opt!r}"
            )
        self._opt = opt
        arguments = self._changed({**arguments, self._inside: opt.keras})
        super().__init__(build_optimizer(kind, row, arguments), arguments.get("name", kind))
        inside = self
        while self._by_rows and isinstance(inside, Wrapping):
            inside = inside._opt
            inside._by_rows = True

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in a form that the Keras optimizer takes."""
        return arguments

    @outside_compiler
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Calls that of `opt`; see `Optimizer.compute_gradients`."""
        return self._opt.compute_gradients(*args, **kwargs)

    @outside_compiler
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Calls that of `opt`, with what is to be done around it; see `Optimizer`."""
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        check_traceable("apply_gradients")
        self._begin_step(global_step)
        verb = functools.partial(self._opt.apply_gradients, global_step=global_step, name=name)
        return step_around(self._optimizer, verb, pairs, self._covered(pairs))

    def _covered(self, pairs: Pairs) -> list[Any]:
        return self._opt._covered(pairs)

    def _parts(self) -> list[Any]:
        return [*super()._parts(), *self._opt._parts()]


def step_around(
    wrapper: Any, verb: Callable[[Pairs], Any], pairs: Pairs, covered: list[Any]
) -> Any:
    """A step of a Keras wrapper with a verb for the step inside; gives what the verb does.

    That is None where the wrapper has left out the step.
    """
    prepare(wrapper, covered)
    results = []

    def step(grads: list[Any], variables: list[Any]) -> None:
        new = {id(variable): g for g, variable in zip(grads, variables, strict=True)}
        results.append(verb([(new.get(id(variable)), variable) for _, variable in pairs]))

    given = [pair for pair in pairs if pair[0] is not None]
    wrapper.apply_around(step, [g for g, _ in given], [v for _, v in given])
    return results[0] if results else None


class Multitasking(Wrapping):
    """`MultitaskOptimizerWrapper`, which has the name of the optimizer inside."""

    def get_name(self) -> str:
        """The name of the optimizer inside."""
        return self._opt.get_name()


class Clipping(Wrapping):
    """`VariableClippingOptimizer`, whose dimensions are those of single variables."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        chosen = chosen_dims(arguments["vars_to_clip_dims"], is_variable)
        self._clipped = [variable for variable, _, _ in chosen if not isinstance(variable, str)]
        return {**arguments, "vars_to_clip_dims": {pattern: dims for _, pattern, dims in chosen}}

    def _covered(self, pairs: Pairs) -> list[Any]:
        covered = super()._covered(pairs)
        known = {id(variable) for variable in covered}
        return covered + [variable for variable in self._clipped if id(variable) not in known]


class Averaging(OriginalAttributes, Wrapping):
    """`MovingAverageOptimizer`: averages of the variables, and files that hold them."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["sequential_update"] is False:
            warnings.warn(
                "MovingAverageOptimizer: `sequential_update=False` let the original read a "
                "variable before or after its update, as it happened. Here it is always after",
                stacklevel=4,
            )
        self._num_updates = arguments["num_updates"]
        if is_variable(self._num_updates):
            # Steps read it before they begin, the original after its count had gone up.
            self._updates = keras.Variable(
                ops.cast(ops.convert_to_tensor(self._num_updates), "float32"),
                trainable=False,
                name="num_updates",
            )
            arguments = {**arguments, "num_updates": self._updates}
        return arguments

    def _begin_step(self, global_step: Any) -> None:
        if is_variable(self._num_updates):
            done = ops.cast(ops.convert_to_tensor(self._num_updates), "float32")
            self._updates.assign(done + (1.0 if global_step is self._num_updates else 0.0))

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> SwappingSaver:
        """A saver that writes averages under the names of the variables.

        Args:
            var_list: Variables to save, a list or a dictionary of them by name. None is all that
                have averages, and all other state of the optimizer.
            name: Name of the saver.
            **kwargs: What `tf.train.Saver` takes, without meaning here.

        Raises:
            RuntimeError: before the first step.
            ValueError: if a variable has no average.
        """
        check_saver_arguments(kwargs)
        moved = variables_of(self._optimizer)
        check_moved(moved)
        return eager_saver(var_list, moved, self._average_of, name, self)

    def _average_of(self, variable: Any) -> Any:
        return slots_of(self._optimizer, variable).get("average")
