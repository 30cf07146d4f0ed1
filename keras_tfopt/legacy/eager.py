"""Verbs whose steps a Keras optimizer makes: all of them on JAX and PyTorch.

On TensorFlow, eager programs of several workers use them as well; for all else
`keras_tfopt.legacy.graph` defines the same names.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import (
    Like,
    check_traceable,
    creating,
    path_of,
    pattern_of,
    prepare,
    slots_of,
    variables_of,
)
from keras_tfopt.engine import outside_compiler as outside_compiler
from keras_tfopt.engine.arguments.options import check_learning_rate
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.legacy.arguments import OfTable, as_in_the_original, build_optimizer, rate_of
from keras_tfopt.legacy.imperative import Imperative
from keras_tfopt.legacy.optimizer import Optimizer, Pairs, inner_of
from keras_tfopt.legacy.problem import EagerProblem
from keras_tfopt.legacy.saver import SwappingSaver
from keras_tfopt.legacy.table import Row
from keras_tfopt.legacy.verb_arguments import check_counter, checked_pairs

problem_of = EagerProblem
OptimizerBase, MODULES = Optimizer, "keras_tfopt.legacy"


apart = contextlib.nullcontext
"""A context for making Keras optimizers."""


def native(variable: Any) -> Any:
    """Return the variable for which state is kept."""
    return variable


read, name_of = ops.convert_to_tensor, path_of


def log(text: str) -> None:
    """Write to the log of this package."""
    logging.getLogger("keras_tfopt").info("%s", text)


def make_variable(
    getter: Callable, worker_device: str, copies: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return the variable that a getter makes. Eager workers have slots instead of copies."""
    return getter(*args, **kwargs)


def form_of(cls: type) -> type:
    """Return the class of an object over workers."""
    return cls


class RuleVerbs(Optimizer, OfTable):
    """A rule, run by its Keras optimizer."""

    _never_called = Optimizer._never_called | {"_prepare", "_create_slots", "_finish"}

    def __init__(self, optimizer: Any):
        super().__init__(optimizer, self._arguments.get("name", self._kind))

    def _arguments_now(self) -> dict[str, Any]:
        """Return the arguments of the Keras optimizer to be made."""
        return self._keras_arguments()

    def _begin_step(self, global_step: Any) -> None:
        self._tell_keras(global_step)

    def _tell_keras(self, global_step: Any) -> None:
        """Give the Keras optimizer the global step, if it needs it."""

    def _get_rate(self) -> Any:
        return self.keras.learning_rate

    def _set_rate(self, value: Any) -> None:
        with as_in_the_original(self._kind, self._row):
            self.keras.learning_rate = check_learning_rate(rate_of(value))

    def _create(self, variables: list[Any]) -> None:
        """Create the state of variables."""
        prepare(self.keras, variables)

    def _state(self, name: str) -> Any:
        """Return a slot of all variables together; None before the first step."""
        return self.keras.slot(None, name) if self.keras.built else None

    def _avoid_updating_slots(self) -> contextlib.AbstractContextManager[None]:
        return self.keras.avoid_updating_slots()

    def _like(self, variable: Any) -> Like:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        return Like(tuple(variable.shape), dtype, path_of(variable))

    def _rule_now(self, variable: Any) -> tuple[Any, Any, Any]:
        """Return the rule and the learning rate of this step, and the value of a variable."""
        x = ops.stop_gradient(ops.convert_to_tensor(variable))
        rule = self.keras.rule_now(keras.backend.standardize_dtype(x.dtype))
        return rule, ops.cast(self.keras.learning_rate, x.dtype), x


class WrapperVerbs(Optimizer, OfTable):
    """An optimizer around `opt`, whose compute_gradients and apply_gradients it calls.

    Row gradients are passed to them as `keras_tfopt.RowGradient`.
    """

    _inside = "opt"  # the argument for the optimizer inside

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._kind, self._row = kind, row
        self._opt = inner_of(self._inside, arguments[self._inside])
        self._arguments = self._changed({**arguments, self._inside: self._opt.keras})
        made = build_optimizer(kind, row, self._keras_arguments())
        super().__init__(made, arguments.get("name", kind))
        inside = self
        while self._by_rows and isinstance(inside, WrapperVerbs):
            inside = inside._opt
            inside._by_rows = True

    @outside_compiler
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Call that of `opt`; see `Optimizer.compute_gradients`."""
        return self._opt.compute_gradients(*args, **kwargs)

    @outside_compiler
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Call that of `opt` inside a step of the wrapper; see `Optimizer.apply_gradients`."""
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        check_traceable("apply_gradients")
        self._begin_step(global_step)
        verb = functools.partial(self._opt.apply_gradients, global_step=global_step, name=name)
        return step_around(self._optimizer, verb, pairs, self._covered(pairs))

    def _covered(self, pairs: Pairs) -> list[Any]:
        return self._opt._covered(pairs)

    def _as_given(self, variable: Any) -> Any:
        return variable

    def _with_slots(self) -> list[Any]:
        """Return the variables that have slots of the wrapper."""
        return variables_of(self._optimizer)

    def _own_slot(self, variable: Any, name: str) -> Any:
        return slots_of(self._optimizer, variable).get(name)

    def _saver(self, slot: str, var_list: Any, moved: list[Any], name: str, more: Any) -> Any:
        """Return a saver that swaps variables with slots of the wrapper."""
        average_of = functools.partial(self._own_slot, name=slot)
        return SwappingSaver(var_list, moved, average_of, name, self)


def rest_while_zero(optimizer: Any) -> None:
    """Do nothing: the Keras wrapper does not move variables while their gradient is zero."""


def step_around(
    wrapper: Any, verb: Callable[[Pairs], Any], pairs: Pairs, covered: list[Any]
) -> Any:
    """Take a step of a Keras wrapper, in which a verb makes the step of the optimizer inside.

    Return the result of the verb, or None if the wrapper left out the step.
    """
    prepare(wrapper, covered)
    results = []

    def step(grads: list[Any], variables: list[Any]) -> None:
        new = {id(variable): g for g, variable in zip(grads, variables, strict=True)}
        results.append(verb([(new.get(id(variable)), variable) for _, variable in pairs]))

    given = [pair for pair in pairs if pair[0] is not None]
    wrapper.apply_around(step, [g for g, _ in given], [v for _, v in given])
    return results[0] if results else None


class DecayVerbs:
    """Weight decay around the verb of a class, by one Keras wrapper for each `decay_var_list`."""

    _minimize: Callable[..., Any]
    _covered: Callable[[Pairs], list[Any]]
    _make_wrapper: Callable[..., Any]
    _weight_decay: Any
    _optimizer: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._decaying: dict[Any, Any] = {}
        self._by_rows = True

    def _checked(self, grads_and_vars: Any) -> tuple[Pairs, Pairs]:
        """Return pairs twice: as the verb takes them, and as hooks take them."""
        pairs = checked_pairs(grads_and_vars)
        return pairs, pairs

    def _apply_decayed(self, verb: Callable, given: Pairs, pairs: Pairs, chosen: Any) -> Any:
        """Take a step with decay of the chosen variables; None is all."""
        check_traceable("apply_gradients")
        patterns = {pattern_of(variable) for variable in chosen or ()}
        if patterns:
            patterns &= {pattern_of(v) for gradient, v in pairs if gradient is not None}
            if not patterns:
                return verb(pairs)
        return step_around(self._decay_around(patterns or None), verb, pairs, self._covered(pairs))

    def _prepare_decay(self) -> None:
        """Make the optimizer with decay of all variables, which checks the arguments."""
        self._decay_around(None)

    def _decay_around(self, chosen: set[str] | None) -> Any:
        """Return the Keras optimizer with decay of the variables of these patterns; None is all."""
        key = None if chosen is None else frozenset(chosen)
        if key not in self._decaying:
            inner = self._optimizer
            with creating(), as_in_the_original(type(self).__name__):
                decayed = None if chosen is None else sorted(chosen)
                made = self._make_wrapper(inner, self._weight_decay, decay_variables=decayed)
                self._decaying[key] = made
                if inner.built:
                    made.build(variables_of(inner))
        return self._decaying[key]

    @property
    def keras(self) -> Any:
        """The Keras optimizer: like `keras_tfopt.DecoupledWeightDecay`, for all variables."""
        return self._decaying[None]


class CustomVerbs(Optimizer):
    """A rule that is one function, called by a Keras optimizer."""

    def __init__(self, learning_rate: Any, use_locking: bool, name: str):
        self._learning_rate_tensor: Any = None
        with as_in_the_original(type(self).__name__):
            rule = Imperative(rate_of(learning_rate), self._functions(), name=name)
        super().__init__(rule, name)

    def _create_slots(self, var_list: Any) -> None:
        """Create state for variables, by `_zeros_slot` or `_get_or_make_slot`."""

    def _finish(self, update_ops: Any, name_scope: str) -> None:
        """Act after the variables of a step."""

    def _rate_now(self) -> Any:
        return self._rate

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        """Return the slot of this name, created with zeros if there is none."""
        return self._optimizer.add_slot_of(var, slot_name, 0.0)

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        """Return the slot of this name, created with the value `val` if there is none."""
        return self._optimizer.add_slot_of(var, slot_name, val)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the state called `name` of a variable; None if there is none, or not yet."""
        return slots_of(self._optimizer, var).get(name)

    def _assign(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Assign all of a variable or slot, or some rows; return its new value."""
        backend.commit([(ref, indices, ops.cast(updates, ref.dtype))])
        return backend.read(ref)

    def _gather(self, dense: Any, indices: Any = None) -> Any:
        """Return rows of a variable, slot or tensor; all of it if `indices` is None.

        An index out of range gives zeros or an error, depending on the backend.
        """
        if indices is not None and isinstance(dense, keras.Variable):
            return backend.take(dense, indices)
        value = ops.convert_to_tensor(dense)
        return value if indices is None else ops.take(value, indices, axis=0)
