"""An optimizer whose step calls a function of the user, which assigns to variables and slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfopt.engine import slots_of
from keras_tfopt.engine.access import get_or_add_slot
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.state import Entry, Like, Slot
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.moving import Mover


class ImperativeMover(Mover):
    """Moves variables by calling the functions, not by a formula."""

    def only_moves(self, as_they_come: bool) -> bool:
        """Return False: there is no formula."""
        return False

    def move(self, incoming: gradients.Incoming, joined: Any = None) -> None:
        """Clip, then call the functions."""
        own = self.optimizer
        own._begin(own.learning_rate)
        grads = gradients.clip_and_orient(own, incoming.grads)
        for g, variable in zip(grads, incoming.variables, strict=True):
            if isinstance(g, RowGradient):
                own._call(g.values, variable, g.indices)
            else:
                own._call(g, variable, None)
        own._end()


class Imperative(Engine):
    """An optimizer whose step calls a function that assigns to the variable and to its slots.

    Unlike the formula of a `Rule`, the functions are not compiled.

    Args:
        learning_rate: As of every optimizer.
        functions: Four functions, called with these arguments:

            - the variables that need state: it calls `add_slot_of` for them;
            - a gradient, its variable, and the indices of the gradient's rows (None if dense);
            - the learning rate: called before the variables of a step;
            - nothing: called after the variables of a step.
        **base: Options of every optimizer.
    """

    mover_class = ImperativeMover

    def __init__(
        self,
        learning_rate: Any,
        functions: tuple[Callable, Callable, Callable, Callable],
        **base: Any,
    ):
        super().__init__(learning_rate, **base)
        # In a tuple: an attribute that is a function without arguments is a hyperparameter.
        self._create_slots_of, self._call, self._begin, self._end = functions

    def slots(self, like: Like) -> dict[str, Slot]:
        """Return no slots: the first function creates them."""
        return {}

    def hyperparameters(self) -> dict[str, Any]:
        """Return no hyperparameters: the functions have their own."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """Refuse: functions cannot be saved."""
        raise NotImplementedError(
            f"{self.name} is written as functions that assign, which cannot be saved. Write the "
            "rule as a subclass of keras_tfopt.Rule to have it saved with a model"
        )

    def add_slot_of(self, variable: Any, name: str, initial: float | str | Any) -> Any:
        """Return the slot of this name; create it from a number or an array if there is none."""
        if isinstance(initial, (int, float, str)):
            return get_or_add_slot(self, variable, name, Slot(tuple(variable.shape), initial))
        known = name in slots_of(self, variable)
        slot = get_or_add_slot(self, variable, name, Slot(tuple(ops.shape(initial)), 0.0))
        if not known:
            slot.assign(initial)
        return slot

    def _add_entries(self, variables: list[Any], likes: list[Like]) -> list[Entry]:
        entries = super()._add_entries(variables, likes)
        self._create_slots_of(variables)
        return entries
