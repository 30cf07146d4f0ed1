"""A place that holds variables: a worker or the center, among others in one process."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine import Like, RowGradient, apply_rows, array_of, dtype_of, slots_of

Gradients = dict[str, Any]


class Site:
    """Variables, an optimizer that steps with them, and slots of the method around it.

    Attributes:
        waits: Whether it waits for others, so that it cannot step.
        seen: The number of the step that it works for: that at which its gradient was read, or that
            of its token.
        gradients: Those of its last step by name, with what the method has added to them.
    """

    def __init__(self, values: Mapping[str, Any], optimizer: Any):
        self.variables = {name: _variable(name, value) for name, value in values.items()}
        self.optimizer = optimizer
        optimizer.build(list(self.variables.values()))
        self.own_slots: dict[str, dict[str, Any]] = {name: {} for name in values}
        self.gradients: Gradients = {}
        self.calls, self.seen, self.waits = 0, 0, False

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The values of the variables, by name."""
        return {name: array_of(v) for name, v in self.variables.items()}

    @property
    def slots(self) -> dict[str, dict[str, np.ndarray]]:
        """The slots of each variable: those of the optimizer and of the method."""
        found = {}
        for name, variable in self.variables.items():
            slots = {**slots_of(self.optimizer, variable), **self.own_slots[name]}
            found[name] = {slot: array_of(value) for slot, value in slots.items()}
        return found

    @property
    def iterations(self) -> int:
        """Number of steps of the optimizer."""
        return int(self.optimizer.iterations)

    @property
    def micro_steps(self) -> int:
        """Number of calls that make one update."""
        return getattr(self.optimizer, "gradient_accumulation_steps", None) or 1

    @property
    def updates(self) -> int:
        """Number of updates of the variables by gradients of its own."""
        return self.calls // self.micro_steps

    def step(self, gradients: Gradients) -> None:
        """Make a step of the optimizer."""
        names = list(gradients)
        apply_rows(
            self.optimizer, [gradients[n] for n in names], [self.variables[n] for n in names]
        )
        self.calls += 1

    def x(self, name: str) -> Any:
        """Return a copy of the value of a variable, in the type to compute with."""
        value = ops.convert_to_tensor(self.variables[name])
        return ops.copy(ops.cast(value, _precision(value)))

    def put(self, name: str, value: Any) -> None:
        """Set a variable."""
        variable = self.variables[name]
        variable.assign(ops.cast(value, variable.dtype))

    def like(self, name: str) -> Like:
        """Return the static facts of a variable."""
        variable = self.variables[name]
        return Like(tuple(variable.shape), _precision(variable), name)

    def scalars(self, **more: Any) -> types.SimpleNamespace:
        """Return the `t` of hooks."""
        lr = ops.cast(ops.convert_to_tensor(self.optimizer.learning_rate), "float32")
        return types.SimpleNamespace(lr=lr, step=self.updates, **more)

    def checked(self, gradients: Any) -> Gradients:
        """Return the gradients that are not None, by name, or raise an error."""
        names = list(self.variables)
        if isinstance(gradients, Sequence) and len(gradients) == len(names):
            gradients = dict(zip(names, gradients, strict=True))
        if not isinstance(gradients, Mapping) or not set(gradients) <= set(names):
            raise ValueError(
                f"Argument `gradients` must have a gradient for each of {names}, a list in this "
                f"order or a dictionary. Received: {gradients!r}"
            )
        found = {}
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            shape = tuple(self.variables[name].shape)
            if not isinstance(gradient, RowGradient):
                gradient = ops.convert_to_tensor(gradient, _precision(self.variables[name]))
                if tuple(gradient.shape) != shape:
                    raise ValueError(
                        f"The gradient of {name!r} must have the variable's shape {shape}. "
                        f"Received: {tuple(gradient.shape)}"
                    )
            found[name] = gradient
        if not found:
            raise ValueError("Argument `gradients` must hold at least one. Received: None for all")
        return found


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of the variable's shape."""
    if not isinstance(gradient, RowGradient):
        return gradient
    zeros = ops.zeros(gradient.shape, gradient.dtype)
    places = ops.expand_dims(gradient.indices, 1)
    return zeros + ops.scatter(places, gradient.values, gradient.shape)


def _precision(value: Any) -> str:
    return "float64" if dtype_of(value) == "float64" else "float32"


def _variable(path: str, value: Any) -> keras.Variable:
    *scopes, name = path.split("/")
    value = np.asarray(value)
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=str(value.dtype), name=name)
