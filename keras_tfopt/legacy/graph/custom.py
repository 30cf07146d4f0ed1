"""Optimizers of one's own in the style of RETURNN, on TensorFlow: one function that assigns."""

from __future__ import annotations

from typing import Any

from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import Imperative, apply_rows, prepare, slots_of, tolerating
from keras_tfopt.execution.graph import STEPS, Pairs, Verbs, operations, value_now, verbs
from keras_tfopt.execution.options import check_learning_rate
from keras_tfopt.legacy.arguments import as_in_the_original, check_name, rate_of
from keras_tfopt.legacy.custom import OneFunction
from keras_tfopt.legacy.graph.conversion import check_outside_graphs
from keras_tfopt.legacy.optimizer import Optimizer


class BaseCustomOptimizer(OneFunction, Verbs, Optimizer):
    """Base class of optimizers of which a subclass defines `_apply` alone.

    ```python
    class SignDescent(legacy.BaseCustomOptimizer):
        def _apply(self, grad, var, indices=None):
            step = ops.cast(self._learning_rate_tensor, grad.dtype) * ops.sign(grad)
            return self._assign_sub(ref=var, updates=step, indices=indices)
    ```

    It is a `tf.compat.v1.train.Optimizer`: state is created in `_create_slots(var_list)` by
    `_zeros_slot` or `_get_or_make_slot`, and found by `get_slot`; `_prepare` runs before the
    variables of a step, `_finish` after them. `_apply` gives the operation, in graphs.
    `keras_tfopt.Rule` is for rules that shall be fast, run on all backends, or be saved with a
    model.

    Repeated rows of a row gradient are summed first; RETURNN passes them on as they are.

    Args:
        learning_rate: Number >= 0, tensor, variable, schedule or function without arguments.
        use_locking: Whether assignments to reference variables take a lock.
        name: Name of the optimizer. Defaults to that of the class.
    """

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str | None = None):
        check_bool("use_locking", use_locking)
        if not (operations.is_variable(learning_rate) or ops.is_tensor(learning_rate)):
            with as_in_the_original(type(self).__name__):
                check_learning_rate(learning_rate)
        self._given_rate = learning_rate
        self._learning_rate_tensor: Any = None
        super().__init__(check_name(type(self).__name__ if name is None else name), use_locking)

    @property
    def keras(self) -> Any:
        """The Keras optimizer: for `model.compile`. It keeps the state from then on.

        Raises:
            RuntimeError: in graphs of TensorFlow 1, where Keras has no optimizers.
        """
        check_outside_graphs(self)
        if self._imperative is None:
            with tolerating(lambda *_: True):  # the constructor has warned already
                self._imperative = Imperative(
                    rate_of(self._given_rate),
                    (
                        self._create_slots,
                        self._call_apply,
                        self._begin,
                        lambda: self._finish([], self._name),
                    ),
                    name=self._name,
                )
        return self._imperative

    _imperative: Any = None

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        """The slot of this name, created with zeros if there is none."""
        if self._imperative is None:
            return super()._zeros_slot(var, slot_name, op_name)
        return self._imperative.add_slot_of(var, slot_name, self._so_far(var, slot_name, 0.0))

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        """The slot of this name, created with the value `val` if there is none."""
        if self._imperative is None:
            return super()._get_or_make_slot(var, val, slot_name, op_name)
        return self._imperative.add_slot_of(var, slot_name, self._so_far(var, slot_name, val))

    def _so_far(self, var: Any, slot_name: str, initial: Any) -> Any:
        """What a slot has become without Keras."""
        own = super().get_slot(var, slot_name)
        return initial if own is None else own.read_value()

    def get_slot(self, var: Any, name: str) -> Any:
        """The state called `name` of a variable; None if there is none, or not yet."""
        if self._imperative is None:
            return super().get_slot(var, name)
        return slots_of(self._imperative, self._given.get(id(var), var)).get(name)

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        if self._imperative is not None:
            given = [(g, self._given[id(v)]) for g, v in pairs if g is not None]
            prepare(self._imperative, [variable for _, variable in given])
            apply_rows(self._imperative, [g for g, _ in given], [v for _, v in given])
            return verbs.counted(global_step)
        if self._follows_schedule():
            first = min((v for g, v in pairs if g is not None), key=lambda variable: variable.name)
            with operations.lifted():
                self._create_non_slot_variable(ops.zeros((), "int64"), STEPS, first)
        return super()._run(pairs, global_step, name)

    def _follows_schedule(self) -> bool:
        return isinstance(self._given_rate, LearningRateSchedule)

    def _count(self) -> Any:
        return self._get_non_slot_variable(STEPS, graph=operations.outermost_graph())

    def _prepare(self) -> None:
        """Before the variables of a step; sets `_learning_rate_tensor`."""
        rate = self._given_rate if self._imperative is None else self._rate
        self._learning_rate_tensor = ops.convert_to_tensor(value_now(rate, self._count))

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """After the variables of a step."""
        if self._imperative is None and self._follows_schedule():
            count = self._count()
            with operations.following(update_ops):
                update_ops = [*update_ops, operations.write(count, operations.read(count) + 1)]
        return operations.group(*update_ops, name=name_scope)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._apply(grad, var)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return self._apply(grad, handle)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._apply(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        return self._apply(grad, handle, indices)

    def _assign(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Assigns all of a variable or slot, or some rows; gives its new value."""
        return operations.value_of(operations.write(ref, updates, indices, self._use_locking))

    def _assign_add(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Adds to a variable or slot, or to some of its rows; gives its new value."""
        old = self._gather(ref, indices)
        return self._assign(ref, old + ops.cast(updates, old.dtype), indices)

    def _assign_sub(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Subtracts from a variable or slot, or from some of its rows; gives its new value."""
        old = self._gather(ref, indices)
        return self._assign(ref, old - ops.cast(updates, old.dtype), indices)

    def _gather(self, dense: Any, indices: Any = None) -> Any:
        """Rows of a variable, slot or tensor; all of it if `indices` is None."""
        value = operations.read(dense) if operations.is_variable(dense) else dense
        return value if indices is None else ops.take(value, indices, axis=0)
