"""Optimizers around another one: they call its verbs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_number
from keras_tfopt.engine import is_variable, pattern_of
from keras_tfopt.legacy.arguments import OriginalAttributes, chosen_dims
from keras_tfopt.legacy.optimizer import Pairs
from keras_tfopt.legacy.saver import check_moved, check_saver_arguments
from keras_tfopt.legacy.select import running
from keras_tfopt.legacy.table import Row
from keras_tfopt.legacy.verb_arguments import count_up


class Multitasking(running.WrapperVerbs):
    """The verbs of `MultitaskOptimizerWrapper`, which has the name of the optimizer inside."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        self._without_zeros = running.rest_while_zero(self._opt)

    @running.outside_compiler
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Call that of `opt`; variables with a gradient of zero do not move."""
        if self._without_zeros is not None:
            grads_and_vars = self._without_zeros(self, grads_and_vars)
            if all(gradient is None for gradient, _ in grads_and_vars):
                return count_up(global_step)
        return super().apply_gradients(grads_and_vars, global_step, name)

    def get_name(self) -> str:
        """Return the name of the optimizer inside."""
        return self._opt.get_name()


class Clipping(running.WrapperVerbs):
    """The verbs of `VariableClippingOptimizer`, which is given dimensions for each variable."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._chosen = chosen_dims(arguments["vars_to_clip_dims"])
        given = [one for one, _, _ in self._chosen if not isinstance(one, str)]
        self._clipped = [running.native(one) for one in given]
        return {**arguments, "vars_to_clip_dims": self._dims_by_name(running.native)}

    def _keras_arguments(self) -> dict[str, Any]:
        dims = self._dims_by_name(self._as_given)
        return {**super()._keras_arguments(), "vars_to_clip_dims": dims}

    def _dims_by_name(self, form: Any) -> Any:
        return {
            pattern if isinstance(one, str) else pattern_of(form(one)): dims
            for one, pattern, dims in self._chosen
        }

    def _is_meant(self, variable: Any) -> bool:
        """Return whether a variable was given, not just another one of its name."""
        name = running.name_of(variable)
        same = [one for one in self._clipped if running.name_of(one) == name]
        return not same or any(one is variable for one in same)

    def _covered(self, pairs: Pairs) -> list[Any]:
        covered = super()._covered(pairs)
        known = {id(variable) for variable in covered}
        return covered + [variable for variable in self._clipped if id(variable) not in known]


class Averaging(running.WrapperVerbs, OriginalAttributes):
    """`MovingAverageOptimizer`: averages of the variables, and a saver for them."""

    _step_name = "train_with_avg"

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["sequential_update"] is False:
            warnings.warn(
                "MovingAverageOptimizer: `sequential_update=False` let the original read a "
                "variable before or after its update, as it happened. Here it is always after",
                stacklevel=4,
            )
        if arguments["num_updates"] is True and not self._steps_with_keras:
            check_number("num_updates", True)  # which raises: steps are not counted
        return arguments

    def _keras_arguments(self) -> dict[str, Any]:
        given = self._num_updates = self._arguments["num_updates"]
        if not is_variable(given):
            return super()._keras_arguments()
        counted: Any = True  # by the Keras optimizer itself
        if self._steps_with_keras:
            # A step here reads it at the beginning. The original read it after counting up.
            start = ops.cast(ops.convert_to_tensor(given), "float32")
            counted = self._updates = keras.Variable(start, trainable=False, name="num_updates")
        return {**super()._keras_arguments(), "num_updates": counted}

    def _begin_step(self, global_step: Any) -> None:
        super()._begin_step(global_step)
        if self._steps_with_keras and is_variable(self._num_updates):
            done = ops.cast(ops.convert_to_tensor(self._num_updates), "float32")
            self._updates.assign(done + (1.0 if global_step is self._num_updates else 0.0))

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """Return a saver that writes averages under the names of the variables.

        Args:
            var_list: Variables to save, a list or a dictionary of them by name. None is, in graphs,
                all global variables; eagerly, all that have averages, and all other state of the
                optimizer.
            name: Name of the saver.
            **kwargs: Arguments of `tf.train.Saver`, which have a meaning in graphs only.

        Returns:
            A `tf.compat.v1.train.Saver` in graphs. It writes no checkpoints for TensorFlow 1
            eagerly: there, an object with methods `save(None, path)` and `restore(None, path)`.

        Raises:
            RuntimeError: before the first step.
            ValueError: if a variable has no average, or its average is not among `var_list`.
        """
        check_saver_arguments(kwargs)
        moved = self._with_slots()
        check_moved(moved)
        return self._saver("average", var_list, moved, name, kwargs)
