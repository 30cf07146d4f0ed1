"""Run optimizers in the style of RETURNN on TensorFlow."""

from __future__ import annotations

from typing import Any

from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_tfopt.engine import apply_rows, prepare, slots_of, tolerating
from keras_tfopt.engine.arguments.options import check_learning_rate
from keras_tfopt.legacy.arguments import as_in_the_original, rate_of
from keras_tfopt.legacy.graph import backend
from keras_tfopt.legacy.graph.conversion import check_outside_graphs
from keras_tfopt.legacy.graph.executor import STEPS
from keras_tfopt.legacy.graph.verbs import Verbs
from keras_tfopt.legacy.imperative import Imperative
from keras_tfopt.legacy.optimizer import Pairs
from keras_tfopt.legacy.verb_arguments import count_up


class CustomVerbs(Verbs):
    """A rule that is one function, called by TensorFlow 1's optimizer or by one of Keras.

    The Keras optimizer owns the state once `keras` has been read.
    """

    _optimizer: Any = None

    def __init__(self, learning_rate: Any, use_locking: bool, name: str):
        if not backend.is_symbolic(learning_rate):
            with as_in_the_original(type(self).__name__):
                check_learning_rate(learning_rate)
        self._given_rate = learning_rate
        self._learning_rate_tensor: Any = None
        super().__init__(name, use_locking)

    @property
    def keras(self) -> Any:
        """The Keras optimizer, for `model.compile`. It owns the state from then on.

        Raises:
            RuntimeError: in graphs of TensorFlow 1, where Keras has no optimizers.
        """
        check_outside_graphs(self)
        if self._optimizer is None:
            with tolerating(lambda *_: True):  # the constructor has warned already
                rate = rate_of(self._given_rate)
                self._optimizer = Imperative(rate, self._functions(), name=self._name)
        return self._optimizer

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        """Return the slot of this name, created with zeros if there is none."""
        if self._optimizer is None:
            return super()._zeros_slot(var, slot_name, op_name)
        return self._optimizer.add_slot_of(var, slot_name, self._so_far(var, slot_name, 0.0))

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        """Return the slot of this name, created with the value `val` if there is none."""
        if self._optimizer is None:
            return super()._get_or_make_slot(var, val, slot_name, op_name)
        return self._optimizer.add_slot_of(var, slot_name, self._so_far(var, slot_name, val))

    def _so_far(self, var: Any, slot_name: str, initial: Any) -> Any:
        """Return the value of a slot of TensorFlow 1's optimizer, or `initial` without one."""
        own = super().get_slot(var, slot_name)
        return initial if own is None else own.read_value()

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the state called `name` of a variable; None if there is none, or not yet."""
        if self._optimizer is None:
            return super().get_slot(var, name)
        return slots_of(self._optimizer, self._given.get(id(var), var)).get(name)

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        if self._optimizer is not None:
            given = [(g, self._given[id(v)]) for g, v in pairs if g is not None]
            prepare(self._optimizer, [variable for _, variable in given])
            apply_rows(self._optimizer, [g for g, _ in given], [v for _, v in given])
            return count_up(global_step)
        if self._follows_schedule():
            first = min((v for g, v in pairs if g is not None), key=lambda variable: variable.name)
            with backend.lifted():
                self._create_non_slot_variable(ops.zeros((), "int64"), STEPS, first)
        return super()._run(pairs, global_step, name)

    def _follows_schedule(self) -> bool:
        return isinstance(self._given_rate, LearningRateSchedule)

    def _count(self) -> Any:
        return self._get_non_slot_variable(STEPS, graph=backend.outermost_graph())

    def _rate_now(self) -> Any:
        rate = self._given_rate if self._optimizer is None else self._rate
        return backend.value_now(rate, self._count)

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """Act after the variables of a step."""
        if self._optimizer is None and self._follows_schedule():
            count = self._count()
            with backend.following(update_ops):
                update_ops = [*update_ops, backend.write(count, backend.read(count) + 1)]
        return backend.group(*update_ops, name=name_scope)

    def _move(self, variable: Any, g: Any, indices: Any) -> Any:
        return self._call_apply(g, variable, indices)

    def _assign(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Assign all of a variable or slot, or some rows; return its new value."""
        return backend.value_of(backend.write(ref, updates, indices, self._use_locking))

    def _gather(self, dense: Any, indices: Any = None) -> Any:
        """Return rows of a variable, slot or tensor; all of it if `indices` is None."""
        value = backend.read(dense) if backend.is_variable(dense) else dense
        return value if indices is None else ops.take(value, indices, axis=0)
