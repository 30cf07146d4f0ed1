"""Scopes that see which variables a function reads and assigns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.utils import tracking


class Reads(keras.StatelessScope):
    """Notes which variables are read. All else happens as if there were no scope."""

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.read: dict[int, Any] = {}

    def __exit__(self, *error: Any) -> None:
        global_state.set_global_attribute("stateless_scope", self.original_scope)
        if self.original_scope is None:
            waiting = global_state.get_global_attribute("uninitialized_variables") or []
            for variable in list(waiting):
                _initialize(variable)

    def get_current_value(self, variable: Any) -> Any:
        self.read[id(variable)] = variable
        if self.original_scope is None and variable._value is not None:
            return None  # as nearly always, and this is called for each variable in each step
        return self._around(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if self.original_scope is None:
            variable._direct_assign(value)
        else:
            self.original_scope.add_update(update)

    def _around(self, variable: Any) -> Any:
        """The value that a scope around this one gives to a variable, or None."""
        if variable._value is None:
            _initialize(variable)
        outer = self.original_scope
        return None if outer is None else outer.get_current_value(variable)


class Given(Reads):
    """Variables have given values; what is assigned is kept apart, in `written`."""

    def __init__(self, variables: Sequence[Any] = (), values: Sequence[Any] = ()):
        super().__init__()
        # Not as an argument, which would convert the values.
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
        """The values assigned, in the order of `written`."""
        return [self.state_mapping[key] for key in self.written]


def is_trainable(variable: Any) -> bool:
    """Whether training would move a variable: it says so, and holds real numbers."""
    return bool(variable.trainable) and is_real(variable)


def is_real(variable: Any) -> bool:
    """Whether there are gradients for a variable of this data type."""
    # What Keras computes with in a variable's place is real if the variable is.
    return _is_real(getattr(variable, "_dtype", None) or variable.dtype)


@functools.cache  # as every step asks for every variable
def _is_real(dtype: Any) -> bool:
    return keras.backend.standardize_dtype(dtype).startswith(("float", "bfloat"))


def in_scope() -> bool:
    """Whether assignments to variables are kept apart."""
    scope = keras.src.backend.common.stateless_scope.get_stateless_scope()
    while isinstance(scope, Reads) and not isinstance(scope, Given):
        scope = scope.original_scope
    return scope is not None


def check_creatable(what: str) -> None:
    """Raises an error in a scope of Keras's, where new variables would get no values in time."""
    scope = keras.src.backend.common.stateless_scope.get_stateless_scope()
    while isinstance(scope, Reads):
        scope = scope.original_scope
    if scope is not None:
        raise RuntimeError(
            f"{what} has no state yet for all variables of this step, and cannot create it inside "
            "of keras.StatelessScope. Call its `build` with the variables before"
        )


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


@contextlib.contextmanager
def creating() -> Iterator[None]:
    """A context in which variables can be created, also where a step is being compiled."""
    from keras_tfopt.execution.select import backend

    with _outside(), backend.concretely():
        yield


@contextlib.contextmanager
def tracked() -> Iterator[None]:
    """A context in which variables that an optimizer keeps as attributes are among its own.

    Keras's Nadam needs that when it is built, and a `build` around it may have turned it off.
    """
    before = tracking.is_tracking_enabled()
    global_state.set_global_attribute("tracking_on", True)
    try:
        yield
    finally:
        global_state.set_global_attribute("tracking_on", before)


def _initialize(variable: Any) -> None:
    """Gives its first value to a variable that a layer has just created in the scope.

    Keras would do so at the end of the scope only, and have it stand for another value until then.
    """
    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    rest = [other for other in waiting if other is not variable]
    global_state.set_global_attribute("uninitialized_variables", rest)
    with creating():
        variable._deferred_initialize()
