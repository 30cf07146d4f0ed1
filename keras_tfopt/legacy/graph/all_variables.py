"""Run rules over all variables at once in TensorFlow 1, which updates one variable at a time."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from tensorflow.python.training.optimizer import _var_key  # names need not be distinct

from keras_tfopt.engine.state.state import Rows
from keras_tfopt.engine.step.all_variables import ModelRule, ModelStep, ModelVariable
from keras_tfopt.engine.step.moving import OVER_ONE
from keras_tfopt.engine.step.slicing import shape_of, steps_along
from keras_tfopt.legacy.graph.backend import dtype_of, group, like_of, read, to_dense, write


class Together:
    """Steps of a rule with scope "model", made once the gradients of all variables are there.

    Until then a variable keeps the gradients. State is in the order of the variables' names, as in
    the original.

    Args:
        optimizer: The rule as an optimizer of TensorFlow 1, which has the state.
    """

    _members: dict[Any, Any]  # variables in order
    _starts: dict[Any, int]  # the index of each variable's first entry in the gradient of all

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer

    def create(self, variables: list[Any]) -> None:
        """Create the state of these variables."""
        own = self._optimizer
        variables = sorted(variables, key=lambda variable: variable.name)
        own._with_state.update({id(variable): variable for variable in variables})
        first, dtype = variables[0], dtype_of(variables[0])
        self._members, self._starts, entries = {}, {}, 0
        for variable in variables:
            self._members[_var_key(variable)], self._starts[_var_key(variable)] = variable, entries
            entries += math.prod(like_of(variable).shape)
        name, dtype_of_count = own._facts.counter
        own._create_non_slot_variable(tf.zeros([], dtype_of_count or dtype), name, first)
        likes = [like_of(variable) for variable in variables]
        described = own._rule.slots(likes)
        for slot in own._facts.shared:
            shape = shape_of(described[slot], likes)
            own._create_non_slot_variable(tf.zeros(shape, dtype), slot, first)
        own._create_non_slot_variable(tf.zeros([entries], dtype), own._facts.scratch[0], first)

    def move(self, variable: Any, g: Any, indices: Any) -> Any:
        """Return the operation that keeps the gradient of a variable."""
        if indices is not None:
            g = to_dense(g, indices, variable)
        self._members[_var_key(variable)] = variable
        start = self._starts[_var_key(variable)]
        end = start + math.prod(like_of(variable).shape)
        return self._gradients()[start:end].assign(tf.reshape(g, [-1]))

    def _gradients(self) -> Any:
        """Return the variable with the gradients of all variables."""
        # It keeps the earlier gradient of a variable whose update a wrapper leaves out.
        return self._optimizer._state(self._optimizer._facts.scratch[0])

    def finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """Return the operation of the whole step, after those of `move`."""
        own, variables = self._optimizer, list(self._members.values())
        step, kept = self._step_of(variables)
        scalars = own._scalars(step.rule.dtype)
        with tf.control_dependencies([one for one in update_ops if one is not None]):
            gradient = read(self._gradients())
            old = {name: read(variable) for name, variable in kept.items()}
            slots = old | own._rule.derived(old)
            x = [read(variable) for variable in variables]
            x, _, new = step.new_values(x, [None] * len(x), slots, [gradient], scalars)
            count = own._count()
            next_count = read(count) + 1
        values = [*x, next_count]
        for name in kept:
            values += [*new[name]] if isinstance(new[name], tuple) else [new[name]]
        with tf.control_dependencies(values):
            writes = [_written(v, n, own._use_locking) for v, n in zip(variables, x, strict=True)]
            writes += [_written(v, new[n], own._use_locking) for n, v in kept.items()]
            writes.append(_written(count, next_count, own._use_locking))
        return group(*writes, name=name_scope)

    def _step_of(self, variables: list[Any]) -> tuple[ModelStep, dict[str, Any]]:
        """Return the step over these variables, and the variables with the slots."""
        own, likes = self._optimizer, [like_of(variable) for variable in variables]
        described = own._rule.slots(likes)
        along = steps_along(described)
        dtype = likes[0].dtype
        changing = tuple(own._facts.changing)
        rule = ModelRule(own._rule, changing, tuple(described), along, dtype, OVER_ONE)
        members, start = [], 0
        for variable, like in zip(variables, likes, strict=True):
            end = start + math.prod(like.shape)
            members.append(ModelVariable(variable, like, start, end, False, None))
            start = end
        kept = {name: own._state(name) for name in own._facts.shared}
        return ModelStep(rule, members, dict.fromkeys(described)), kept


def _written(variable: Any, value: Any, use_locking: bool) -> Any:
    """Write a value, which may be one row, a `Rows`."""
    if isinstance(value, Rows):
        index = tf.reshape(tf.cast(value.index, "int32"), [1])
        return write(variable, value.value[None], index, use_locking)
    return write(variable, value, None, use_locking)
