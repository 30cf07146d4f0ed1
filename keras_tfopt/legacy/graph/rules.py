"""Run rules under their original names, with the state and the steps of TensorFlow 1."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_tfopt.engine import Like, Slot, changes, is_function_of_step
from keras_tfopt.legacy.arguments import OfTable, build_optimizer
from keras_tfopt.legacy.graph import backend
from keras_tfopt.legacy.graph.backend import Later, is_symbolic, is_variable, native
from keras_tfopt.legacy.graph.conversion import ConvertingRule
from keras_tfopt.legacy.graph.executor import STEPS, Facts
from keras_tfopt.legacy.slots import slots_in_order, unwritten_shape
from keras_tfopt.legacy.table import WITHOUT_MEANING

# Hyperparameters that are raised to the power of `global_step`, where that is given.
_RAISED = ("beta_1", "beta_2")


class RuleVerbs(ConvertingRule, OfTable):
    """A rule with the state, the names and the order of operations of its original."""

    _never_called = frozenset({"_apply"})  # of RETURNN

    def __init__(self, optimizer: Any):
        arguments, rule = self._arguments, optimizer.formula()
        # These variables belong to the optimizer that only checked the arguments.
        variables = [name for name, value in vars(rule).items() if is_variable(value)]
        self._switch: Any = backend.Switch() if "avoiding" in variables else None
        rule = rule.with_attributes(dict.fromkeys(variables))
        name = arguments.get("name") or self._kind
        super().__init__(rule, self._make_facts(), name, arguments.get("use_locking", False))

    def _arguments_now(self) -> dict[str, Any]:
        """Return the arguments, with functions instead of those that have no value yet."""
        given = self._arguments
        found = {n: Later(value) if is_symbolic(value) else value for n, value in given.items()}
        if is_symbolic(given.get("global_step")):
            found["global_step"] = None
            if is_function_of_step(given["learning_rate"]):
                found["learning_rate"] = Later(given["learning_rate"])
        return found

    def _get_rate(self) -> Any:
        made = self._optimizer
        return self._arguments["learning_rate"] if made is None else made.learning_rate

    def _set_rate(self, value: Any) -> None:
        if self._optimizer is not None:
            raise AttributeError(
                "A learning rate cannot be assigned once `keras` has been asked for. Assign "
                "`keras.learning_rate`"
            )
        before = self._arguments
        self._arguments = {**before, "learning_rate": value}
        try:
            with backend.apart():
                build_optimizer(self._kind, self._row, self._arguments_now())
        except Exception:
            self._arguments = before
            raise
        self._facts = dataclasses.replace(
            self._facts, learning_rate=self._make_facts().learning_rate
        )

    def _make_facts(self) -> Facts:
        row, arguments = self._row, self._arguments
        ours = {
            row.renamed.get(name, name): value
            for name, value in arguments.items()
            if name not in WITHOUT_MEANING | {"name", "learning_rate", "global_step"}
        }
        rate, step = arguments.get("learning_rate"), arguments.get("global_step")
        if is_function_of_step(rate) and step is not None:
            rate = functools.partial(_at, rate, step)
        changing = {name: v for name, v in ours.items() if is_symbolic(v) or changes(v)}
        if self._switch is not None:
            changing["avoiding"] = self._switch.now
        counter = ("global_step", None) if row.counts else self._own_count()
        if counter is None and any(hasattr(v, "get_config") for v in (rate, *changing.values())):
            counter = STEPS, "int64"
        raised = [] if step is None else [h for h in row.renamed.values() if h in _RAISED]
        return Facts(
            learning_rate=rate,
            changing=changing,
            powers={row.renamed.get(name, name): f"{name}_power" for name in row.powers},
            global_step=step,
            raised=tuple(raised),
            counter=counter,
            shared=row.shared,
            scratch=row.scratch,
            slots=self._slots_of,
            op_name=getattr(self, "slot_bases", {}).get,
        )

    def _own_count(self) -> tuple[str, str | None] | None:
        """Return name and data type of the original's own count of steps, if it has one."""
        return None

    def _slots_of(self, like: Like, ours: Mapping[str, Slot]) -> Mapping[str, Slot]:
        size = getattr(self._rule, "max_matrix_size", 0)
        order = slots_in_order(self._row, len(like.shape), ours)
        found = {
            name: ours[name] if name in ours else Slot(unwritten_shape(name, like.shape, size))
            for name in order
        }
        return {**found, **ours}

    def _create(self, variables: list[Any]) -> None:
        """Create the state of variables."""
        self._create_slots([native(variable) for variable in variables])

    _like = staticmethod(backend.like_of)

    def _rule_now(self, variable: Any) -> tuple[Any, Any, Any]:
        """Return the rule and the learning rate of this step, and the value of a variable."""
        self._prepare()
        dtype = backend.dtype_of(variable).name
        values = {name: ops.cast(value, dtype) for name, value in self._now.items()}
        rate = values.pop("learning_rate")
        return self._rule.formula(values), rate, backend.read(variable)

    def _avoid_updating_slots(self) -> contextlib.AbstractContextManager[None]:
        return self._switch.on()

    _last: Any = None  # the number of the last eager step

    def _following(self) -> Any:
        return ops.cast(native(self._facts.global_step), "float32") + 1

    def _prepare(self) -> None:
        super()._prepare()
        if self._facts.global_step is not None and backend.is_eager():
            self._last = self._following()

    def _get_beta_accumulators(self) -> Any:
        """Return the running powers in the form of the original: variables or tensors."""
        step = self._facts.global_step
        if not self._facts.powers and step is not None and "beta1" in self._row.arguments:
            known = backend.is_eager() and self._last is not None
            number = self._last if known else self._following()
            betas = [self._initial(name) for name in _RAISED]
            return tuple(ops.cast(native(beta), "float32") ** number for beta in betas)
        powers = tuple(self._powers().values())
        return powers[0] if len(powers) == 1 else powers


def _at(function: Any, step: Any) -> Any:
    """Return the value of a function of the step at the next step."""
    return function(ops.cast(native(step), "float32") + 1)
