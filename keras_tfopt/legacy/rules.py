"""Verbs of single names: what they do besides applying their rule."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution import Like, path_of, prepare
from keras_tfopt.execution.options import check_learning_rate
from keras_tfopt.execution.verb_arguments import checked_variables
from keras_tfopt.legacy.arguments import (
    OriginalAttributes,
    as_in_the_original,
    build_optimizer,
    check_counted,
    check_sign_decay_fn,
    named_arguments,
    rate_of,
    take_slot_bases,
)
from keras_tfopt.legacy.optimizer import Optimizer, Pairs
from keras_tfopt.legacy.table import Row
from keras_tfopt.rule import register


class Rule(OriginalAttributes, Optimizer):
    """An optimizer that is a rule of keras_tfopt under the name of an original."""

    _never_called = Optimizer._never_called | {"_prepare", "_create_slots", "_finish"}

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._kind, self._row = kind, row
        arguments = self._changed(named_arguments(type(self), row, arguments))
        super().__init__(build_optimizer(kind, row, arguments), arguments.get("name", kind))

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in a form that the Keras optimizer takes."""
        return arguments

    def _set_rate(self, value: Any) -> None:
        with as_in_the_original(self._kind, self._row):
            self.keras.learning_rate = check_learning_rate(rate_of(value))


class Named(Rule):
    """`FtrlOptimizer`, which takes names of slots, for files.

    Attributes:
        slot_bases: The names given, by slot.
    """

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        arguments = dict(arguments)
        self.slot_bases = take_slot_bases(row, arguments)
        super().__init__(kind, row, arguments)


class AllVariables(Rule):
    """`GGTOptimizer`: one state for all variables, in the order of their names."""

    def _covered(self, pairs: Pairs) -> list[Any]:
        return sorted((variable for _, variable in pairs), key=path_of)

    def _get_moment1(self) -> Any:
        return self._state("moment1")

    def _get_grad_buffer(self) -> Any:
        return self._state("grad_buffer")

    def _state(self, name: str) -> Any:
        return self.keras.slot(None, name) if self.keras.built else None


class AvoidedSlots(Rule):
    """`RegAdagradOptimizer`, which can take steps that its accumulator does not see."""

    def avoid_updating_slots(self) -> contextlib.AbstractContextManager[None]:
        """A context in which steps leave the accumulators as they are."""
        return self.keras.avoid_updating_slots()


class LayerRates(Rule):
    """`LARSOptimizer`, whose learning rates can be asked for."""

    def compute_lr(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """The learning rate of a step for a variable, and its gradient with weight decay.

        Both are as they were given for a variable that `skip_list` names.
        """
        rule = self.keras
        x = ops.stop_gradient(ops.convert_to_tensor(var))
        g = ops.cast(ops.convert_to_tensor(grad), x.dtype)
        dtype = keras.backend.standardize_dtype(x.dtype)
        if rule.is_skipped(Like(tuple(x.shape), dtype, path_of(var))):
            return ops.cast(rule.learning_rate, x.dtype), g
        weight_decay = rule.rule_now(dtype).weight_decay
        return rule.compute_lr(g, x), g + weight_decay * x


@register
class OfGlobalStep(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the global step, which may have begun before the optimizer's own count."""

    def __init__(self, function: Any, before: int = 0):
        self.function, self.dtype = function, "int32"
        self.before = keras.Variable(before, dtype="int32", trainable=False, name="before")

    def __call__(self, step: Any) -> Any:
        """What the function gives at this step of the optimizer."""
        done = ops.cast(step, "int32") + ops.convert_to_tensor(self.before)
        return self.function(ops.cast(done, self.dtype))

    def begin_at(self, global_step: Any, iterations: Any) -> None:
        """Takes the global step, and the steps of the optimizer, that there have been."""
        done = ops.convert_to_tensor(global_step)
        self.dtype = keras.backend.standardize_dtype(done.dtype)
        self.before.assign(ops.cast(done, "int32") - ops.cast(iterations, "int32"))

    def get_config(self) -> dict[str, Any]:
        """The function, which can be saved if it is a schedule."""
        function = keras.saving.serialize_keras_object(self.function)
        return {"function": function, "before": int(ops.convert_to_numpy(self.before))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OfGlobalStep:
        """The function that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["function"]), config["before"])


class SignDecayed(Rule):
    """`AddSignOptimizer` and `PowerSignOptimizer`: a decay by the global step."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        function = arguments["sign_decay_fn"]
        check_sign_decay_fn(function)
        self._of_step = None if function is None else OfGlobalStep(function)
        return {**arguments, "sign_decay_fn": self._of_step}

    def _begin_step(self, global_step: Any) -> None:
        if self._of_step is None:
            return
        check_counted(global_step)
        # The optimizer counts its own steps, which need not be all there have been.
        self._of_step.begin_at(global_step, self.keras.iterations)


class GivenVariables(Rule):
    """`AMSGradOptimizer`, which may be given its variables when it is made."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._given = checked_variables(arguments.pop("var_list"), TypeError)
        return arguments

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        if self._given:
            prepare(self.keras, self._given)
