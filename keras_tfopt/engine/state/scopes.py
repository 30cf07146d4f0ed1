"""Scopes that record which variables a function reads and assigns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_tfopt.engine.keras_private import (
    forget_uninitialized,
    get_stateless_scope,
    outside_of_scopes,
    set_stateless_scope,
    uninitialized_variables,
)


class Reads(keras.StatelessScope):
    """Record which variables are read. Everything else happens as without a scope."""

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.read: dict[int, Any] = {}

    def __exit__(self, *error: Any) -> None:
        set_stateless_scope(self.original_scope)
        if self.original_scope is None:
            for variable in uninitialized_variables():
                _initialize(variable)

    def get_current_value(self, variable: Any) -> Any:
        self.read[id(variable)] = variable
        if self.original_scope is None and variable._value is not None:
            return variable._value  # nearly always: this runs for each variable in each step
        return self._around(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if self.original_scope is None:
            variable._direct_assign(value)
        else:
            self.original_scope.add_update(update)

    def _around(self, variable: Any) -> Any:
        """Return the value that a variable has outside of this scope.

        In `fit` on JAX, the scope around has it: Keras removes the values of variables meanwhile.
        """
        outer = self.original_scope
        value = None if outer is None else outer.get_current_value(variable)
        if value is None:
            if variable._value is None:
                _initialize(variable)
            value = variable._value
        return value


class Given(Reads):
    """Give values to variables within a scope, and keep assignments to them in it."""

    def __init__(self, variables: Sequence[Any] = (), values: Sequence[Any] = ()):
        super().__init__()
        # Not as an argument of the constructor, which would convert the values.
        self.state_mapping = {id(v): x for v, x in zip(variables, values, strict=True)}
        self.written: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        self.read.setdefault(id(variable), variable)
        found = self.state_mapping.get(id(variable))
        return self._around(variable) if found is None else found

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self.written.setdefault(id(variable), variable)
        self.state_mapping[id(variable)] = value

    def new_values(self) -> list[Any]:
        """Return the assigned values, in the order of `written`."""
        return [self.state_mapping[key] for key in self.written]


def is_trainable(variable: Any) -> bool:
    """Return whether a variable is trainable and holds real numbers."""
    return bool(variable.trainable) and is_real(variable)


def is_real(variable: Any) -> bool:
    """Return whether a variable has a data type for which there are gradients."""
    # Read the variable's own data type. Keras's `dtype` depends on mixed precision.
    return _is_real(getattr(variable, "_dtype", None) or variable.dtype)


@functools.cache  # every step asks for every variable
def _is_real(dtype: Any) -> bool:
    return keras.backend.standardize_dtype(dtype).startswith(("float", "bfloat"))


def in_scope() -> bool:
    """Return whether a scope keeps assignments to variables."""
    scope = get_stateless_scope()
    while isinstance(scope, Reads) and not isinstance(scope, Given):
        scope = scope.original_scope
    return scope is not None


def check_creatable(what: str) -> None:
    """Raise an error in a Keras scope, where new variables would not be initialized in time."""
    scope = get_stateless_scope()
    while isinstance(scope, Reads):
        scope = scope.original_scope
    if scope is not None:
        raise RuntimeError(
            f"{what} has no state yet for all variables of this step, and cannot create it inside "
            "of keras.StatelessScope. Call its `build` with the variables before"
        )


@contextlib.contextmanager
def creating() -> Iterator[None]:
    """Allow creating variables in this context, even while a step is being compiled."""
    from keras_tfopt.engine.backends.select import backend

    with outside_of_scopes(), backend.concretely():
        yield


def _initialize(variable: Any) -> None:
    """Initialize a variable that a layer has just created in the scope.

    Keras would initialize it at the end of the scope, and use another value until then.
    """
    forget_uninitialized(variable)
    with creating():
        variable._deferred_initialize()
