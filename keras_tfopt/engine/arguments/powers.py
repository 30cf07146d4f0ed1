"""Powers of hyperparameters as in TensorFlow 1, where `beta**step` is a product over all steps.

Only `legacy` asks for them, by `keep_powers`. They are here because they are part of the state that
optimizers save, load and update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import scalar
from keras_tfopt.engine.arguments.options import changes, current
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.building import constant
from keras_tfopt.engine.state.conversion import Saved
from keras_tfopt.engine.state.state import HYPERPARAMETER

POWER = "_power"  # suffix of a hyperparameter's name, for the role of its power in saved state


class Exponent:
    """The step in `beta**step`, where the result is looked up for some values of beta.

    Args:
        known: The powers, by the identity of the tensor that is raised.
        step: The number of the step, for all other bases.
    """

    def __init__(self, known: Mapping[int, Any], step: Any = None):
        self._known, self._step = known, step

    def __rpow__(self, base: Any) -> Any:
        return self._known[id(base)] if id(base) in self._known else base**self._step


class Powers:
    """The powers that an optimizer keeps of hyperparameters that change.

    Args:
        names: The hyperparameters. Those that are numbers need no such power.

    Attributes:
        variables: The powers for the next step, by hyperparameter; NaN before the first.
    """

    def __init__(self, names: Iterable[str]):
        self._names = tuple(names)
        self.variables: dict[str, Any] = {}

    def roles(self, optimizer: Any) -> tuple[str, ...]:
        """Return the roles of the powers in saved state, before they are created."""
        return tuple(f"{n}{POWER}" for n in self._names if changes(getattr(optimizer, n)))

    def create(self, optimizer: Any, dtype: str) -> None:
        """Create the variables while an optimizer is being built."""
        for name in self._names:
            if name in optimizer._changing:
                role = f"{name}{POWER}"
                made = optimizer.add_variable((), constant(math.nan), dtype, name=role)
                self.variables[name] = optimizer._state.other[role] = made

    def exponent(self, step: Any, values: dict[str, Any]) -> Any:
        """Return the step for a rule, given its hyperparameters that change."""
        names = [name for name in self.variables if name in values]
        for name in names:
            # Powers are found by the tensor. TensorFlow would read a variable as another tensor.
            values[name] = values[name] + 0
        known = {id(values[n]): _power(self.variables[n], values[n]) for n in names}
        return Exponent(known, step) if known else step

    def advance(self, optimizer: Any) -> None:
        """Multiply the powers by the values in the current step."""
        for name, variable in self.variables.items():
            now = scalar(current(optimizer._changing[name], optimizer._iterations), variable.dtype)
            backend.commit([(variable, None, _power(variable, now) * now)])


def _power(kept: Any, now: Any) -> Any:
    """Return the power for this step, given the value of the hyperparameter in this step."""
    power = ops.cast(backend.read(kept), now.dtype)
    return ops.where(ops.isnan(power), now, power)  # NaN before the first step


def keep_powers(optimizer: Any, names: Iterable[str]) -> None:
    """Make an optimizer compute `beta**step` as TensorFlow 1 does for hyperparameters that change.

    Call it before the optimizer is built. Without it, rules raise the value of the current step.
    """
    optimizer.powers = Powers(names)


def recall(optimizer: Any, saved: Saved) -> None:
    """Prepare an optimizer made from a configuration for the state that was saved with it.

    The configuration has numbers for hyperparameters that are variables, and no powers.
    """
    arrays = dict(zip(saved.roles, saved.arrays, strict=True))
    hyperparameters = optimizer.hyperparameters()
    for name, value in hyperparameters.items():
        array = arrays.get(HYPERPARAMETER + name)
        if array is not None and array.shape == () and isinstance(value, float):
            variable = keras.Variable(array, trainable=False, dtype=array.dtype.name, name=name)
            setattr(optimizer, name, variable)
    kept = [name for name in hyperparameters if f"{name}{POWER}" in arrays]
    if kept:
        keep_powers(optimizer, kept)
