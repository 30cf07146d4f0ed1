"""Classes of rules under the names of originals, with what some do besides applying the rule."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.legacy.arguments import OriginalAttributes, build_optimizer, check_name
from keras_tfopt.legacy.optimizer import Pairs
from keras_tfopt.legacy.select import running
from keras_tfopt.legacy.table import Row
from keras_tfopt.legacy.verb_arguments import checked_variables
from keras_tfopt.rule import register


class Rule(running.RuleVerbs, OriginalAttributes):
    """An optimizer that is a rule of keras_tfopt under the name of an original."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._kind, self._row = kind, row
        given = dict(arguments)
        if "name" in row.arguments:
            # Classes of RETURNN are named after the class, or the subclass, of the object.
            named = row.arguments["name"] is None and given["name"] is None
            given["name"] = check_name(type(self).__name__ if named else given["name"])
        self._arguments = self._changed(given)
        with running.apart():
            made = build_optimizer(kind, row, self._arguments_now())
        super().__init__(made)


class Named(Rule):
    """`FtrlOptimizer`, whose arguments may name its slots.

    Attributes:
        slot_bases: The names given, by slot.
    """

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.slot_bases = {}
        for slot, argument in self._row.slot_names.items():
            value = arguments.pop(argument)
            if value is not None and not isinstance(value, str):
                raise TypeError(
                    f"Argument `{argument}` must be None or a string. Received: {value!r}"
                )
            if value:
                self.slot_bases[slot] = value
        return arguments


class AllVariables(Rule):
    """`GGTOptimizer`: one state for all variables, in the order of their names."""

    def _covered(self, pairs: Pairs) -> list[Any]:
        return sorted((variable for _, variable in pairs), key=running.name_of)

    def _get_flat_grad(self) -> Any:
        return self._state("flat_grad")

    def _get_moment1(self) -> Any:
        return self._state("moment1")

    def _get_grad_buffer(self) -> Any:
        return self._state("grad_buffer")


class AvoidedSlots(Rule):
    """`RegAdagradOptimizer`, which can take steps without adding to its accumulators."""

    def avoid_updating_slots(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which steps leave the accumulators as they are.

        In graphs, operations that are built inside of it do so whenever they run.
        """
        return self._avoid_updating_slots()


class LayerRates(Rule):
    """`LARSOptimizer`, which has a method for the learning rate of a variable."""

    def compute_lr(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """Return the learning rate of a step for a variable, and its gradient with weight decay.

        Both are as they were given for a variable that `skip_list` names.
        """
        rule, rate, x = self._rule_now(var)
        g = ops.cast(ops.convert_to_tensor(grad), x.dtype)
        if rule.is_skipped(self._like(var)):
            return rate, g
        norms = [ops.sqrt(ops.sum(ops.square(value))) for value in (g, x)]
        return rate * rule._trust_ratio(*norms, rule.weight_decay), g + rule.weight_decay * x


@register
class OfGlobalStep(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the global step, which may be ahead of the optimizer's own count of steps."""

    def __init__(self, function: Any, before: int = 0):
        self.function, self.dtype = function, "int32"
        self.before = keras.Variable(before, dtype="int32", trainable=False, name="before")

    def __call__(self, step: Any) -> Any:
        """Return the value of the function at this step of the optimizer."""
        done = ops.cast(step, "int32") + ops.convert_to_tensor(self.before)
        return self.function(ops.cast(done, self.dtype))

    def begin_at(self, global_step: Any, iterations: Any) -> None:
        """Note the global step and the optimizer's own count at the same time."""
        done = ops.convert_to_tensor(global_step)
        self.dtype = keras.backend.standardize_dtype(done.dtype)
        self.before.assign(ops.cast(done, "int32") - ops.cast(iterations, "int32"))

    def get_config(self) -> dict[str, Any]:
        """Return the function, which can be saved if it is a schedule."""
        function = keras.saving.serialize_keras_object(self.function)
        return {"function": function, "before": int(ops.convert_to_numpy(self.before))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OfGlobalStep:
        """Make the function that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["function"]), config["before"])


class SignDecayed(Rule):
    """`AddSignOptimizer` and `PowerSignOptimizer`: a decay by the global step."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        function = arguments["sign_decay_fn"]
        if function is not None and not callable(function):
            raise TypeError(
                "Argument `sign_decay_fn` must be None or a function of the global step. "
                f"Received: {function!r}"
            )
        self._function = function
        return {**arguments, "sign_decay_fn": None if function is None else self._sign_decay}

    def _sign_decay(self) -> Any:
        return self._function(running.read(self._global_step))

    def _keras_arguments(self) -> dict[str, Any]:
        self._of_step = None if self._function is None else OfGlobalStep(self._function)
        return {**self._arguments, "sign_decay_fn": self._of_step}

    def _begin_step(self, global_step: Any) -> None:
        if self._function is not None and global_step is None:
            raise ValueError(
                "Argument `global_step` is required where there is a `sign_decay_fn`, which is a "
                "function of it. Received: global_step=None"
            )
        super()._begin_step(global_step)

    def _tell_keras(self, global_step: Any) -> None:
        if self._of_step is not None and global_step is not None:
            # The global step may be ahead of the count of the optimizer.
            self._of_step.begin_at(global_step, self._optimizer.iterations)


class GivenVariables(Rule):
    """`AMSGradOptimizer`, which may be given its variables when it is made."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        if self._variables_given:
            self._create(self._variables_given)

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._variables_given = checked_variables(arguments.pop("var_list"), TypeError)
        return arguments

    def _own_count(self) -> tuple[str, str | None] | None:
        return ("t", "float32") if self._arguments["decay"] else None
