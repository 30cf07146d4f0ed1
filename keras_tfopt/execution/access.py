"""Any Keras optimizer, ours or stock, from outside: its state by name, steps with row gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.execution import gradients
from keras_tfopt.execution.binding import HYPERPARAMETER
from keras_tfopt.execution.building import path_of
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.wrapping import WrappingEngine, in_form_for, state_of

# Variables of an optimizer that are no state of the training: what it was told, and bookkeeping.
_TOLD = ("learning_rate", "refused_rows")


def variables_of(optimizer: Any) -> list[Any]:
    """The variables that an optimizer knows; none before it is built."""
    return list(optimizer._trainable_variables) if optimizer.built else []


def slots_of(optimizer: Any, variable: Any) -> dict[str, Any]:
    """The state that an optimizer keeps for a variable, by name; empty where it keeps none."""
    place = _place(optimizer, variable)
    if place is None:
        return {}
    if isinstance(optimizer, WrappingEngine):
        return {
            **optimizer._slot_variables[place],
            **slots_of(optimizer.inner_optimizer, variable),
        }
    if isinstance(optimizer, Engine):
        return dict(optimizer._slot_variables[place])
    prefix = len(path_of(variable)) + 1
    return {state.name[prefix:]: state for state in state_of(optimizer, place)}


def slot_names_of(optimizer: Any) -> list[str]:
    """The names of all the state that belongs to single variables, in alphabetical order."""
    names = (slots_of(optimizer, variable) for variable in variables_of(optimizer))
    return sorted({name for slots in names for name in slots})


def state_variables(optimizer: Any) -> list[Any]:
    """The variables that an optimizer keeps from one step to the next; none before it is built."""
    if not optimizer.built:
        return []
    if isinstance(optimizer, WrappingEngine):
        roles = zip(optimizer._variables, optimizer._roles(), strict=True)
        own = [v for v, role in roles if role != "iteration" and not _is_told(role)]
        return own + state_variables(optimizer.inner_optimizer)
    if isinstance(optimizer, Engine):
        roles = zip(optimizer.variables, optimizer._roles(), strict=True)
        return [v for v, role in roles if not _is_told(role)]
    return [v for v in optimizer.variables if v is not optimizer._learning_rate]


def _is_told(role: str) -> bool:
    return role in _TOLD or role.startswith(HYPERPARAMETER)


def as_named_rows(gradient: Any, variable: Any) -> Any:
    """A row gradient of the backend as one that touches all the rows it names; others unchanged."""
    if isinstance(gradient, RowGradient) or not hasattr(gradient, "shape"):
        return gradient
    rows = backend.from_native(gradient, tuple(variable.shape))
    return gradient if rows is None else rows


def apply_rows(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """`optimizer.apply`, for which optimizers of Keras get row gradients in a form they take."""
    if not isinstance(optimizer, (Engine, WrappingEngine)):
        if not optimizer.built:
            optimizer.build(variables)
        pairs = zip(grads, variables, strict=True)
        grads = [_in_form_for(optimizer, gradient, variable) for gradient, variable in pairs]
    optimizer.apply(grads, variables)


def _in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    if not isinstance(gradient, RowGradient):
        return ops.convert_to_tensor(gradient)
    rows = gradients.Touched(gradient.values, gradient.indices, gradient.shape, named=True)
    return in_form_for(optimizer, gradients.sum_repeated(rows, None), variable)


def _place(optimizer: Any, variable: Any) -> int | None:
    """The number of a variable among those that an optimizer was built for."""
    if not optimizer.built:
        return None
    return optimizer._trainable_variables_indices.get(optimizer._var_key(variable))
