"""Optimizers of one's own in the style of RETURNN: one function that assigns."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import Imperative, assign_rows, slots_of, take_rows
from keras_tfopt.legacy.arguments import as_in_the_original, check_name, rate_of
from keras_tfopt.legacy.optimizer import Optimizer


class OneFunction:
    """A rule that is one function, called for each variable by the Keras optimizer."""

    _never_called: frozenset[str] = frozenset()
    _rate: Any = None

    def _prepare(self) -> None:
        """Before the variables of a step."""

    def _apply(self, grad: Any, var: Any, indices: Any = None) -> Any:
        """The rule, to be defined by subclasses: assigns to the variable and to its slots.

        Args:
            grad: Gradient, a tensor; of a row gradient, the values of its rows.
            var: Variable.
            indices: None, or the rows that `grad` is for.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define `_apply(self, grad, var, indices=None)`"
        )

    def _begin(self, learning_rate: Any) -> None:
        self._rate = learning_rate
        self._prepare()

    def _call_apply(self, grad: Any, var: Any, indices: Any) -> None:
        if indices is None:
            self._apply(grad, var)
        else:
            self._apply(grad, var, indices)


class BaseCustomOptimizer(OneFunction, Optimizer):
    """Base class of optimizers of which a subclass defines `_apply` alone.

    ```python
    class SignDescent(legacy.BaseCustomOptimizer):
        def _apply(self, grad, var, indices=None):
            step = ops.cast(self._learning_rate_tensor, grad.dtype) * ops.sign(grad)
            return self._assign_sub(ref=var, updates=step, indices=indices)
    ```

    State is created in `_create_slots(var_list)` by `_zeros_slot` or `_get_or_make_slot`, and found
    by `get_slot`. `_prepare` runs before the variables of a step, `_finish` after them. With
    `keras.ops`, a subclass runs on all backends; one that is written with `tf` runs on TensorFlow.
    Nothing of it is compiled but where the whole step is; `keras_tfopt.Rule` is for rules that
    shall be fast, or saved with a model.

    Repeated rows of a row gradient are summed first; RETURNN passes them on as they are.

    Args:
        learning_rate: Number >= 0, variable, schedule or function without arguments.
        use_locking: Without meaning.
        name: Name of the optimizer. Defaults to that of the class.
    """

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str | None = None):
        check_bool("use_locking", use_locking)
        name = check_name(type(self).__name__ if name is None else name)
        self._learning_rate_tensor: Any = None
        with as_in_the_original(type(self).__name__):
            rule = Imperative(
                rate_of(learning_rate),
                (self._create_slots, self._call_apply, self._begin, lambda: self._finish([], name)),
                name=name,
            )
        super().__init__(rule, name)

    def _prepare(self) -> None:
        """Before the variables of a step; sets `_learning_rate_tensor`."""
        self._learning_rate_tensor = ops.convert_to_tensor(self._rate)

    def _create_slots(self, var_list: Any) -> None:
        """Creates state for variables, by `_zeros_slot` or `_get_or_make_slot`."""

    def _finish(self, update_ops: Any, name_scope: str) -> None:
        """After the variables of a step."""

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        """The slot of this name, created with zeros if there is none."""
        return self._optimizer.add_slot_of(var, slot_name, 0.0)

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        """The slot of this name, created with the value `val` if there is none."""
        return self._optimizer.add_slot_of(var, slot_name, val)

    def get_slot(self, var: Any, name: str) -> Any:
        """The state called `name` of a variable; None if there is none, or not yet."""
        return slots_of(self._optimizer, var).get(name)

    def _assign(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Assigns all of a variable or slot, or some rows; gives its new value."""
        return assign_rows(ref, ops.cast(updates, ref.dtype), indices)

    def _assign_add(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Adds to a variable or slot, or to some of its rows; gives its new value."""
        old = self._gather(ref, indices)
        return assign_rows(ref, old + ops.cast(updates, old.dtype), indices)

    def _assign_sub(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Subtracts from a variable or slot, or from some of its rows; gives its new value."""
        old = self._gather(ref, indices)
        return assign_rows(ref, old - ops.cast(updates, old.dtype), indices)

    def _gather(self, dense: Any, indices: Any = None) -> Any:
        """Rows of a variable, slot or tensor; all of it if `indices` is None."""
        if indices is None:
            return ops.convert_to_tensor(dense)
        if isinstance(dense, keras.Variable):
            return take_rows(dense, indices)
        return ops.take(ops.convert_to_tensor(dense), indices, axis=0)
