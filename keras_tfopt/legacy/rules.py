"""Verbs of single names: what they do besides applying their rule."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution import Like, path_of, prepare
from keras_tfopt.execution.verb_arguments import checked_variables
from keras_tfopt.legacy.arguments import (
    build_optimizer,
    check_counted,
    check_sign_decay_fn,
    named_arguments,
    take_slot_bases,
)
from keras_tfopt.legacy.optimizer import Optimizer, Pairs
from keras_tfopt.legacy.table import Row


class Rule(Optimizer):
    """An optimizer that is a rule of keras_tfopt under the name of an original."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        arguments = self._changed(named_arguments(type(self), row, arguments))
        super().__init__(build_optimizer(kind, row, arguments), arguments.get("name", kind))

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in a form that the Keras optimizer takes."""
        return arguments


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


class OfGlobalStep(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the global step, which may have begun before the optimizer's own count."""

    def __init__(self, function: Any, before: Any):
        self.function, self.before = function, before

    def __call__(self, step: Any) -> Any:
        """What the function gives at this step of the optimizer."""
        return self.function(ops.cast(step, "int32") + ops.convert_to_tensor(self.before))

    def get_config(self) -> dict[str, Any]:
        """The function, which can be saved if it is a schedule."""
        return {"function": keras.saving.serialize_keras_object(self.function), "before": 0}


class SignDecayed(Rule):
    """`AddSignOptimizer` and `PowerSignOptimizer`: a decay by the global step."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        function = arguments["sign_decay_fn"]
        self._before = None
        if function is None:
            return arguments
        check_sign_decay_fn(function)
        self._before = keras.Variable(0, dtype="int32", trainable=False, name="before")
        return {**arguments, "sign_decay_fn": OfGlobalStep(function, self._before)}

    def _begin_step(self, global_step: Any) -> None:
        if self._before is None:
            return
        check_counted(global_step)
        # The optimizer counts its own steps, which need not be all there have been.
        done = ops.cast(ops.convert_to_tensor(global_step), "int32")
        self._before.assign(done - ops.cast(self.keras.iterations, "int32"))


class GivenVariables(Rule):
    """`AMSGradOptimizer`, which may be given its variables when it is made."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._given = checked_variables(arguments.pop("var_list"), TypeError)
        return arguments

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        if self._given:
            prepare(self.keras, self._given)
