"""Save and load the values of all workers of one process if they differ."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tfopt.engine.access import array_of
from keras_tfopt.engine.keras_private import KerasSaveable


class ReplicaStates(KerasSaveable):
    """The values of variables that differ between the workers of one process.

    Keras saves and loads the values of the first worker only. It finds this object among the
    attributes of an optimizer, and saves and loads it with the optimizer.
    """

    def __init__(self, optimizer: Any):
        # A weak reference: Keras saves all attributes recursively, and would never end.
        self._owner: Callable[[], Any] = weakref.ref(optimizer)
        self._loaded: dict[int, np.ndarray] = {}
        self._steps = 0  # of the optimizer, when values were loaded

    def _obj_type(self) -> str:
        return "Optimizer"  # Keras refuses unknown types

    def save_own_variables(self, store: Any) -> None:
        """Write the values on all workers, stacked, under the number of the variable."""
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
        """Give each worker its own values, now or when the optimizer is built."""
        self._loaded = {int(key): np.array(store[key]) for key in store.keys() if key.isdigit()}
        if self._owner().built:
            self.restore()

    def restore(self) -> None:
        """Give each worker its own values, if this process has as many workers as when saved."""
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
        """Restore again, unless there were steps: Keras may load layers after optimizers."""
        if self._loaded and self._owner().built and self._steps == self._steps_now():
            self.restore()
        self._loaded = {}

    def _steps_now(self) -> int:
        return int(array_of(self._owner()._iterations))

    def _variables(self) -> list[Any]:
        return [*self._owner()._trainable_variables, *self._owner().variables]
