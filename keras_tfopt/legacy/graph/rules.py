"""Rules under their original names as optimizers of TensorFlow, in graphs and eagerly."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_tfopt.execution import Like, Slot, changes, is_function_of_step
from keras_tfopt.execution.graph import (
    STEPS,
    AllVariablesExecutor,
    Pairs,
    Plan,
    apart,
    dtype_of,
    is_eager,
    is_variable,
    name_of,
    native,
    operations,
    read,
)
from keras_tfopt.execution.verb_arguments import checked_variables
from keras_tfopt.legacy.arguments import (
    OriginalAttributes,
    build_optimizer,
    check_counted,
    check_sign_decay_fn,
    named_arguments,
    take_slot_bases,
)
from keras_tfopt.legacy.graph.conversion import ConvertingRule
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.rules import OfGlobalStep
from keras_tfopt.legacy.slots import slots_in_order, unwritten_shape
from keras_tfopt.legacy.table import WITHOUT_MEANING, Row


class Later:
    """A hyperparameter that is a variable or tensor, in the place of a number while one is checked.

    Args:
        value: What was given.
    """

    def __init__(self, value: Any):
        self.value = value

    def __call__(self) -> Any:
        """What was given."""
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


class Rule(OriginalAttributes, ConvertingRule, Optimizer):
    """An optimizer that is a rule of keras_tfopt under the name of an original."""

    _never_called = frozenset({"_apply"})  # of RETURNN

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._row, self._kind = row, kind
        arguments = self._changed(named_arguments(type(self), row, arguments))
        self._arguments = arguments
        with apart():
            optimizer = build_optimizer(kind, row, self._stand_ins(arguments))
            rule = optimizer.formula()
        # Variables belong to the optimizer that was only made to check.
        variables = [name for name, value in vars(rule).items() if is_variable(value)]
        rule = rule.with_attributes(dict.fromkeys(variables))
        name = arguments.get("name") or kind
        super().__init__(rule, self._planned(arguments), name, arguments.get("use_locking", False))

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in a form that the rule takes."""
        return arguments

    def _make_keras(self) -> Any:
        return build_optimizer(self._kind, self._row, self._arguments)

    def _set_rate(self, value: Any) -> None:
        if self._keras_optimizer is not None:
            raise AttributeError(
                "A learning rate cannot be assigned once `keras` has been asked for. Assign "
                "`keras.learning_rate`"
            )
        arguments = {**self._arguments, "learning_rate": value}
        with apart():
            build_optimizer(self._kind, self._row, self._stand_ins(arguments))
        self._arguments = arguments
        rate = self._planned(arguments).learning_rate
        self._plan = dataclasses.replace(self._plan, learning_rate=rate)

    def _stand_ins(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with functions for those that have no value yet."""
        found = {
            name: Later(value) if _is_symbolic(value) else value
            for name, value in arguments.items()
        }
        if _is_symbolic(arguments.get("global_step")):
            found["global_step"] = None
            if is_function_of_step(arguments["learning_rate"]):
                found["learning_rate"] = Later(arguments["learning_rate"])
        return found

    def _planned(self, arguments: dict[str, Any]) -> Plan:
        row = self._row
        ours = {
            row.renamed.get(name, name): value
            for name, value in arguments.items()
            if name not in WITHOUT_MEANING | {"name", "learning_rate", "global_step"}
        }
        rate, step = arguments.get("learning_rate"), arguments.get("global_step")
        if is_function_of_step(rate) and step is not None:
            rate = functools.partial(_at, rate, step)
        changing = {
            name: value for name, value in ours.items() if _is_symbolic(value) or changes(value)
        }
        counter = ("global_step", None) if row.counts else self._own_count(arguments)
        if counter is None and any(hasattr(v, "get_config") for v in (rate, *changing.values())):
            counter = STEPS, "int64"
        return Plan(
            rate,
            changing,
            {row.renamed.get(name, name): f"{name}_power" for name in row.powers},
            step,
            tuple(ours for ours in row.renamed.values() if step is not None and ours in _RAISED),
            counter,
            row.shared,
            row.scratch,
            self._slots_of,
            self._op_name,
        )

    def _own_count(self, arguments: dict[str, Any]) -> tuple[str, str | None] | None:
        """Name and data type of a count of steps that the rule needs and the original keeps."""
        return None

    def _slots_of(self, like: Like, ours: Mapping[str, Slot]) -> Mapping[str, Slot]:
        size = getattr(self._rule, "max_matrix_size", 0)
        order = slots_in_order(self._row, len(like.shape), ours)
        found = {
            name: ours[name] if name in ours else Slot(unwritten_shape(name, like.shape, size))
            for name in order
        }
        return {**found, **ours}

    def _op_name(self, slot: str) -> str | None:
        return None

    _last: Any = None  # the number of the last eager step

    def _following(self) -> Any:
        return ops.cast(native(self._plan.global_step), "float32") + 1

    def _prepare(self) -> None:
        super()._prepare()
        if self._plan.global_step is not None and is_eager():
            self._last = self._following()

    def _get_beta_accumulators(self) -> Any:
        """The running powers, as the original has them: variables, or what they are this step."""
        step = self._plan.global_step
        if not self._plan.powers and step is not None and "beta1" in self._row.arguments:
            number = self._last if is_eager() and self._last is not None else self._following()
            betas = [self._initial(name) for name in ("beta_1", "beta_2")]
            return tuple(ops.cast(native(beta), "float32") ** number for beta in betas)
        powers = tuple(self._powers().values())
        return powers[0] if len(powers) == 1 else powers


class Named(Rule):
    """`FtrlOptimizer`, which takes names of slots.

    Attributes:
        slot_bases: The names given, by slot.
    """

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.slot_bases = take_slot_bases(self._row, arguments)
        return arguments

    def _op_name(self, slot: str) -> str | None:
        return self.slot_bases.get(slot)


class AllVariables(AllVariablesExecutor, Rule):
    """`GGTOptimizer`: one state for all variables, in the order of their names."""

    def _get_moment1(self) -> Any:
        return self._non_slot("moment1")

    def _get_grad_buffer(self) -> Any:
        return self._non_slot("grad_buffer")

    def _get_flat_grad(self) -> Any:
        return self._non_slot("flat_grad")


class AvoidedSlots(Rule):
    """`RegAdagradOptimizer`, which can take steps that its accumulator does not see."""

    def _planned(self, arguments: dict[str, Any]) -> Plan:
        plan = super()._planned(arguments)
        self._avoiding = operations.Switch()
        plan.changing["avoiding"] = self._avoiding.now  # type: ignore[index]
        return plan

    def avoid_updating_slots(self) -> contextlib.AbstractContextManager[None]:
        """A context in which steps, or operations that are built, leave the accumulators alone."""
        return self._avoiding.on()


class LayerRates(Rule):
    """`LARSOptimizer`, whose learning rates can be asked for."""

    def compute_lr(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """The learning rate of a step for a variable, and its gradient with weight decay.

        Both are as they were given for a variable that `skip_list` names.
        """
        self._prepare()
        dtype = dtype_of(var).name
        x, g = read(var), ops.cast(grad, dtype)
        values = {name: ops.cast(value, dtype) for name, value in self._now.items()}
        rate = values.pop("learning_rate")
        rule = self._rule.formula(values)
        if self._rule.is_skipped(Like(tuple(var.shape), dtype, name_of(var))):
            return rate, g
        norms = [ops.sqrt(ops.sum(ops.square(value))) for value in (g, x)]
        return rate * rule._trust_ratio(*norms, rule.weight_decay), g + rule.weight_decay * x


class SignDecayed(Rule):
    """`AddSignOptimizer` and `PowerSignOptimizer`: a decay by the global step."""

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        function = arguments["sign_decay_fn"]
        check_sign_decay_fn(function)
        self._sign_decay_fn, self._counted = function, None
        return {**arguments, "sign_decay_fn": None if function is None else self._sign_decay}

    def _sign_decay(self) -> Any:
        return self._sign_decay_fn(read(self._counted))

    def _make_keras(self) -> Any:
        if self._sign_decay_fn is None:
            return super()._make_keras()
        self._of_keras = OfGlobalStep(self._sign_decay_fn)
        arguments = {**self._arguments, "sign_decay_fn": self._of_keras}
        return build_optimizer(self._kind, self._row, arguments)

    def _hand_over(self) -> None:
        super()._hand_over()
        if self._counted is not None and self._sign_decay_fn is not None:
            self._of_keras.begin_at(self._counted, self._keras_optimizer.iterations)

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        if self._sign_decay_fn is not None:
            check_counted(global_step)
        self._counted = global_step
        return super()._run(pairs, global_step, name)


class GivenVariables(Rule):
    """`AMSGradOptimizer`, which may be given its variables when it is made."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        if self._var_list:
            self._create_slots([native(variable) for variable in self._var_list])

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._var_list = checked_variables(arguments.pop("var_list"), TypeError)
        return arguments

    def _own_count(self, arguments: dict[str, Any]) -> tuple[str, str | None] | None:
        return ("t", "float32") if arguments["decay"] else None


# What is raised to a global step, where there is one.
_RAISED = ("beta_1", "beta_2")


def _at(function: Any, step: Any) -> Any:
    """What a function of the number of the step gives for the step to come."""
    return function(ops.cast(native(step), "float32") + 1)


def _is_symbolic(value: Any) -> bool:
    """Whether a hyperparameter is a tensor or variable, which may have no value yet."""
    return is_variable(value) or ops.is_tensor(value)
