"""What the workers of one process have that the first of them has not, in saved files."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from keras.src.saving.keras_saveable import KerasSaveable

from keras_tfopt.execution.training_state import array_of


class ReplicaStates(KerasSaveable):
    """Saved beside an optimizer whose workers share a process, after everything inside of it.

    Keras saves and loads the values of the first worker. Here stand those of all of them, for the
    variables of which they differ.
    """

    def __init__(self, optimizer: Any):
        # Keras goes through all attributes to find what to save, and would come back to it.
        self._owner: Callable[[], Any] = weakref.ref(optimizer)
        self._loaded: dict[int, np.ndarray] = {}
        self._steps = 0  # of the optimizer, when they were loaded

    def _obj_type(self) -> str:
        return "Optimizer"  # one of the kinds that Keras knows: it is part of one

    def save_own_variables(self, store: Any) -> None:
        """Writes, by the number of the variable, its values on all workers, one after another."""
        found = self._loaded
        if self._owner().built:
            found = {}
            for number, variable in enumerate(self._variables()):
                values = self._owner().exchange.values_of(variable)
                if any(not np.array_equal(value, values[0]) for value in values):
                    found[number] = np.stack(values)
        for number, values in found.items():
            store[str(number)] = values

    def load_own_variables(self, store: Any) -> None:
        """Gives each worker its own values, now or when the optimizer is built."""
        self._loaded = {int(key): np.array(store[key]) for key in store.keys() if key.isdigit()}
        if self._owner().built:
            self.restore()

    def restore(self) -> None:
        """Gives each worker its own values, if as many work here as did then."""
        if not self._loaded:
            return
        variables, exchange = self._variables(), self._owner().exchange
        self._steps = self._steps_now()
        fit = all(
            number < len(variables)
            and values.dtype.kind in "biuf"
            and values.shape == (exchange.workers_here, *variables[number].shape)
            for number, values in self._loaded.items()
        )
        for number, values in self._loaded.items() if fit else ():
            exchange.set_values(variables[number], list(values))

    def restore_again(self) -> None:
        """Does it once more, unless there have been steps: layers may have been loaded since."""
        if self._loaded and self._owner().built and self._steps == self._steps_now():
            self.restore()
        self._loaded = {}

    def _steps_now(self) -> int:
        return int(array_of(self._owner()._iterations))

    def _variables(self) -> list[Any]:
        return [*self._owner()._trainable_variables, *self._owner().variables]
