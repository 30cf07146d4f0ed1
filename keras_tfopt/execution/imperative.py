"""Rules that assign: a function is called with each variable, its gradient and its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_tfopt.execution import gradients
from keras_tfopt.execution.building import add_slot
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like, Slot


class Imperative(Engine):
    """An optimizer whose step is a function that assigns to the variable and to its slots.

    For rules that were written so. A rule for `Engine.update` is compiled, this is not.

    Args:
        learning_rate: As of every optimizer.
        functions: Four functions. The first is called with the variables of which state is to be
            created, and calls `add_slot_of`; the second with a gradient, its variable and indices,
            None for a gradient of all of it; the third with the learning rate before the variables
            of a step; the last without arguments after them.
        **base: Options of every optimizer.
    """

    def __init__(
        self,
        learning_rate: Any,
        functions: tuple[Callable, Callable, Callable, Callable],
        **base: Any,
    ):
        super().__init__(learning_rate, **base)
        # Together: one without arguments, by itself, would be a hyperparameter that changes.
        self._create_slots_of, self._call, self._begin, self._end = functions

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError(
            f"{self.name} is written as functions that assign, which cannot be saved. Write the "
            "rule as a subclass of keras_tfopt.Rule to have it saved with a model"
        )

    def add_slot_of(self, variable: Any, name: str, initial: float | str | Any) -> Any:
        """The slot of this name, created if there is none; starts at a number or an array."""
        index = self._get_variable_index(variable)
        slots = self._slot_variables[index]
        if name not in slots:
            like = self._likes[index]
            is_number = isinstance(initial, (int, float, str))
            shape = like.shape if is_number else tuple(ops.shape(initial))
            start = initial if is_number else 0.0
            slots[name] = add_slot(self, variable, like, name, Slot(shape, start))
            if not is_number:
                slots[name].assign(initial)
        return slots[name]

    def _add_variables(self, variables: list[Any], likes: list[Like]) -> None:
        super()._add_variables(variables, likes)
        self._create_slots_of(variables)

    def _step(
        self, grads: list[Any], variables: list[Any], touched: list[Any] | None = None
    ) -> None:
        self._begin(self._get_current_learning_rate())
        for g, variable in zip(gradients.clip_and_orient(self, grads), variables, strict=True):
            if isinstance(g, gradients.Touched):
                self._call(g.values, variable, g.indices)
            else:
                self._call(g, variable, None)
        self._end()


def take_rows(variable: Any, indices: Any) -> Any:
    """The rows of a variable; what lies out of range is zero or an error, as the backend has it."""
    return backend.take(variable, indices)


def assign_rows(variable: Any, values: Any, indices: Sequence[Any] | None) -> Any:
    """Assigns rows, or all of a variable, and gives its new value."""
    backend.commit(None, [(variable, indices, values)])
    return backend.read(variable)
