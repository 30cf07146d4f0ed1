"""A place that holds variables: a worker or the center, among others in one process."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.execution import RowGradient, apply_rows, slots_of

Values = dict[str, np.ndarray]


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
        self.gradients: dict[str, Any] = {}
        self.calls, self.seen, self.waits = 0, 0, False

    @property
    def values(self) -> Values:
        """The values of the variables, by name."""
        return {name: _array(v) for name, v in self.variables.items()}

    @property
    def slots(self) -> dict[str, Values]:
        """The slots of each variable: those of the optimizer and of the method."""
        found = {}
        for name, variable in self.variables.items():
            slots = {**slots_of(self.optimizer, variable), **self.own_slots[name]}
            found[name] = {slot: _array(value) for slot, value in slots.items()}
        return found

    @property
    def iterations(self) -> int:
        """Steps of the optimizer."""
        return int(self.optimizer.iterations)

    @property
    def micro_steps(self) -> int:
        """Calls that make one update."""
        return getattr(self.optimizer, "gradient_accumulation_steps", None) or 1

    @property
    def updates(self) -> int:
        """Updates of the variables by gradients of its own."""
        return self.calls // self.micro_steps

    def step(self, gradients: Mapping[str, Any]) -> None:
        """A step of the optimizer."""
        given = [(g, self.variables[name]) for name, g in gradients.items() if g is not None]
        apply_rows(self.optimizer, [g for g, _ in given], [v for _, v in given])
        self.calls += 1

    def x(self, name: str) -> Any:
        """The value of a variable, to compute with."""
        value = ops.convert_to_tensor(self.variables[name])
        return ops.copy(ops.cast(value, _dtype(value)))

    def put(self, name: str, value: Any) -> None:
        variable = self.variables[name]
        variable.assign(ops.cast(value, variable.dtype))

    def scalars(self, **more: Any) -> types.SimpleNamespace:
        """What hooks find in `t`."""
        lr = ops.cast(ops.convert_to_tensor(self.optimizer.learning_rate), "float32")
        return types.SimpleNamespace(lr=lr, step=self.updates, **more)


def checked(gradients: Any, site: Site) -> dict[str, Any]:
    """Gradients by name: tensors, row gradients, or None; or an error."""
    names = list(site.variables)
    if isinstance(gradients, Sequence) and len(gradients) == len(names):
        gradients = dict(zip(names, gradients, strict=True))
    if not isinstance(gradients, Mapping) or not set(gradients) <= set(names):
        raise ValueError(
            f"Argument `gradients` must have a gradient for each of {names}, a list in this order "
            f"or a dictionary. Received: {gradients!r}"
        )
    found = {}
    for name, gradient in gradients.items():
        if gradient is not None and not isinstance(gradient, RowGradient):
            gradient = ops.convert_to_tensor(gradient, _dtype(site.variables[name]))
            if tuple(gradient.shape) != tuple(site.variables[name].shape):
                raise ValueError(
                    f"The gradient of {name!r} must have the variable's shape "
                    f"{tuple(site.variables[name].shape)}. Received: {tuple(gradient.shape)}"
                )
        found[name] = gradient
    if all(gradient is None for gradient in found.values()):
        raise ValueError("Argument `gradients` must hold at least one. Received: None for all")
    return found


def _dtype(value: Any) -> str:
    return "float64" if keras.backend.standardize_dtype(value.dtype) == "float64" else "float32"


def _variable(path: str, value: Any) -> keras.Variable:
    *scopes, name = path.split("/")
    value = np.asarray(value)
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=str(value.dtype), name=name)


def _array(value: Any) -> np.ndarray:
    return np.array(ops.convert_to_numpy(value))
