"""Read the state of any Keras optimizer by name, and step with row gradients, from outside."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.arguments.options import own_parameters, takes
from keras_tfopt.engine.arguments.representation import argument_of
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.foreign import in_form_for, state_of
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.building import add_slot, path_of
from keras_tfopt.engine.state.decoded_slot import DecodedSlot, seen
from keras_tfopt.engine.state.state import HYPERPARAMETER, Slot
from keras_tfopt.engine.step import gradients

# Variables of an optimizer that are not state of the training: arguments and bookkeeping.
_NOT_STATE = ("learning_rate", "refused_rows")


def keras_optimizers() -> dict[str, type]:
    """Return the optimizer classes of Keras by their names in lower case, without the base."""
    return {
        name.lower(): cls
        for name, cls in vars(keras.optimizers).items()
        if inspect.isclass(cls)
        and issubclass(cls, keras.optimizers.Optimizer)
        and cls is not keras.optimizers.Optimizer
    }


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer knows; none before it is built."""
    return list(optimizer._trainable_variables) if optimizer.built else []


def slots_of(optimizer: Any, variable: Any) -> dict[str, Any]:
    """Return the state that an optimizer keeps for a variable, by name."""
    place = _place(optimizer, variable)
    if place is None:
        return {}
    if isinstance(optimizer, Optimizer):
        own = seen(optimizer._state.entries[place])
        inner = getattr(optimizer, "inner_optimizer", None)
        return {**own, **(slots_of(inner, variable) if inner is not None else {})}
    prefix = len(path_of(variable)) + 1
    return {state.name[prefix:]: state for state in state_of(optimizer, place)}


def functions_in(optimizer: Any) -> list[str]:
    """Name the arguments of an optimizer and those inside that are functions without arguments."""
    return [
        f"`{name}` of {type(part).__name__}"
        for part in parts(optimizer)
        for name in own_parameters(type(part))
        if callable(value := argument_of(part, name)) and takes(value)
    ]


def get_or_add_slot(optimizer: Engine, variable: Any, name: str, slot: Slot) -> Any:
    """Return a slot of a variable that the optimizer was built for; create it if needed."""
    place = optimizer._get_variable_index(variable)
    entry = optimizer._state.entries[place]
    slots = entry.slots
    if name not in slots:
        slots[name] = add_slot(optimizer, variable, entry.like, name, slot)
    return slots[name]


def slot_names_of(optimizer: Any) -> list[str]:
    """Return the names of all state of single variables, in alphabetical order."""
    names = (slots_of(optimizer, variable) for variable in variables_of(optimizer))
    return sorted({name for slots in names for name in slots})


def average_of(optimizer: Any, variable: Any) -> Any:
    """Return the average that `use_ema` keeps of a variable; None if there is none."""
    for part in parts(optimizer):
        if isinstance(part, Engine) and part.use_ema:
            return part._model_variables_moving_average[part._get_variable_index(variable)]
    return None


def is_accumulating(optimizer: Any) -> bool:
    """Return whether a rule is in the middle of a step that accumulates gradients."""
    calls = int(backend.number(optimizer._iterations))
    return bool(calls % (optimizer.gradient_accumulation_steps or 1))


def set_steps(optimizer: Any, steps: int) -> None:
    """Set the number of steps done by an optimizer and all inside it, in whole steps."""
    for part in parts(optimizer):
        if isinstance(part, Optimizer):
            part._iterations.assign(steps * (part.gradient_accumulation_steps or 1))


def follows_schedule(optimizer: Any) -> bool:
    """Return whether the learning rate or a hyperparameter of a rule is a schedule."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    values = [optimizer._learning_rate, *optimizer.hyperparameters().values()]
    return any(isinstance(value, schedule) for value in values)


def state_variables(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer keeps between steps; none before it is built."""
    if not optimizer.built:
        return []
    if not isinstance(optimizer, Optimizer):
        return [v for v in optimizer.variables if v is not optimizer._learning_rate]
    inner = getattr(optimizer, "inner_optimizer", None)
    # With an optimizer inside, its count of steps is the one that matters.
    others = _NOT_STATE if inner is None else (*_NOT_STATE, "iteration")
    roles = zip(optimizer._variables, optimizer._roles(), strict=True)
    own = [v for v, role in roles if role not in others and not role.startswith(HYPERPARAMETER)]
    return own if inner is None else own + state_variables(inner)


def as_named_rows(gradient: Any, variable: Any) -> Any:
    """Return a row gradient of the backend as one that touches all rows it names."""
    if isinstance(gradient, RowGradient) or not hasattr(gradient, "shape"):
        return gradient
    rows = backend.from_native(gradient, tuple(variable.shape))
    if rows is None:
        return gradient
    return RowGradient.unchecked(rows.values, rows.indices, rows.shape, named=True)


def apply_rows(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Call `optimizer.apply`; optimizers of Keras get row gradients in a form that they take."""
    if not isinstance(optimizer, Optimizer):
        if not optimizer.built:
            optimizer.build(variables)
        pairs = zip(grads, variables, strict=True)
        grads = [_in_form_for(optimizer, gradient, variable) for gradient, variable in pairs]
    optimizer.apply(grads, variables)


def _in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    if not isinstance(gradient, RowGradient):
        return ops.convert_to_tensor(gradient)
    return in_form_for(optimizer, gradients.sum_repeated(gradient, None), variable)


def _place(optimizer: Any, variable: Any) -> int | None:
    """Return the place of a variable among those that an optimizer was built for."""
    if not optimizer.built:
        return None
    return optimizer._trainable_variables_indices.get(optimizer._var_key(variable))


def dtype_of(variable: Any) -> str:
    """Return the data type of any variable or tensor, as Keras names it."""
    return keras.backend.standardize_dtype(variable.dtype)


def array_of(variable: Any) -> np.ndarray:
    """Return a copy of the value of a variable; bfloat16, which NumPy lacks, in float32."""
    is_decoded = isinstance(variable, DecodedSlot)
    value = variable.value if is_decoded else ops.convert_to_tensor(variable)
    if dtype_of(value) == "bfloat16":
        value = ops.cast(value, "float32")
    return np.array(ops.convert_to_numpy(value))
