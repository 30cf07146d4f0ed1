"""Functions of a model's variables as functions of one vector."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine import backend, dtype_of
from keras_tfopt.engine.state.scopes import Given
from keras_tfopt.engine.state.state import widest


class Flattening:
    """The order in which variables are joined to one vector.

    Attributes:
        size: How many numbers the vector has.
        dtype: Its dtype on the device: the widest of the variables', at least float32.
    """

    def __init__(self, variables: Sequence[Any]):
        self.variables = list(variables)
        self.shapes = [tuple(variable.shape) for variable in self.variables]
        self.dtypes = [dtype_of(variable) for variable in self.variables]
        self.dtype = widest(self.dtypes)
        sizes = [math.prod(shape) for shape in self.shapes]
        self.ends = np.cumsum(sizes).tolist()
        self.size = sum(sizes)

    def join(self, values: Sequence[Any]) -> Any:
        """Join a tensor for each variable to a vector."""
        parts = [ops.cast(ops.reshape(value, (-1,)), self.dtype) for value in values]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts)

    def split(self, vector: Any) -> list[Any]:
        """Split a vector into a tensor for each variable."""
        parts = ops.split(vector, self.ends[:-1]) if len(self.shapes) > 1 else [vector]
        return [
            ops.cast(ops.reshape(part, shape), dtype)
            for part, shape, dtype in zip(parts, self.shapes, self.dtypes, strict=True)
        ]

    def read(self, dtype: str | None = None) -> np.ndarray:
        """Return the values of the variables as a NumPy vector; None keeps their dtype."""
        arrays = [ops.convert_to_numpy(variable) for variable in self.variables]
        return np.concatenate([np.asarray(array, dtype).ravel() for array in arrays])

    def assign(self, vector: np.ndarray) -> None:
        """Assign the values of a NumPy vector to the variables."""
        parts = np.split(vector, self.ends[:-1])
        each = zip(self.variables, parts, self.shapes, self.dtypes, strict=True)
        for variable, part, shape, dtype in each:
            variable.assign(ops.convert_to_tensor(part.reshape(shape), dtype))

    def value(self, function: Callable[[], Any], vector: Any) -> Any:
        """Return the value of a function of the variables at a vector. Nothing is assigned."""
        return self._at(function, self.split(vector))

    def value_and_gradient(
        self, function: Callable[[], Any], vector: Any, differentiable: bool = False
    ) -> tuple[Any, Any]:
        """Return the value and the gradient of a function of the variables at a vector.

        Nothing is assigned. What the function itself assigns to variables is dropped.

        Args:
            function: Function of no arguments that returns a scalar tensor.
            vector: Tensor of shape `(size,)`.
            differentiable: Whether the result will be differentiated again.
        """
        value, gradients = backend.value_and_gradients(
            functools.partial(self._at, function),
            self.split(vector),
            differentiable=differentiable,
        )
        return value, self.join(gradients)

    def _at(self, function: Callable[[], Any], parts: list[Any]) -> Any:
        with Given(self.variables, parts):
            return ops.cast(function(), self.dtype)


class FlatFunction:
    """A scalar function of a model and of data, as a compiled function of a vector.

    Args:
        function: Function of data that returns a scalar tensor, and reads the variables.
        flattening: The variables that it is a function of.
        others: Other variables that it reads: their values are arguments of what is compiled.
    """

    def __init__(
        self, function: Callable[[Any], Any], flattening: Flattening, others: Sequence[Any]
    ):
        self._function, self._flattening, self._others = function, flattening, list(others)
        self._value = backend.compiled(self._value_alone)
        self._evaluate = backend.compiled(self._value_and_gradient)
        self._multiply = backend.compiled(self._product)

    def __call__(self, vector: np.ndarray, data: Any) -> tuple[float, np.ndarray]:
        """Return the value and the gradient at a point."""
        value, gradient = self._evaluate(self._tensor(vector), self._values(), data)
        return float(ops.convert_to_numpy(value)), ops.convert_to_numpy(gradient)

    def value(self, vector: np.ndarray, data: Any) -> float:
        """Return the value at a point, for which no gradient is computed."""
        value = self._value(self._tensor(vector), self._values(), data)
        return float(ops.convert_to_numpy(value))

    def hessian_product(self, vector: np.ndarray, direction: np.ndarray, data: Any) -> np.ndarray:
        """Return the product of the matrix of second derivatives at a point with a vector."""
        tensors = self._tensor(vector), self._tensor(direction)
        return ops.convert_to_numpy(self._multiply(*tensors, self._values(), data))

    def _tensor(self, vector: np.ndarray) -> Any:
        return ops.convert_to_tensor(vector.astype(self._flattening.dtype, copy=False))

    def _values(self) -> list[Any]:
        return [variable.value for variable in self._others]

    def _value_alone(self, vector: Any, values: list[Any], data: Any) -> Any:
        with Given(self._others, values):
            return self._flattening.value(lambda: self._function(data), vector)

    def _value_and_gradient(self, vector: Any, values: list[Any], data: Any) -> tuple[Any, Any]:
        with Given(self._others, values):
            return self._flattening.value_and_gradient(lambda: self._function(data), vector)

    def _product(self, vector: Any, direction: Any, values: list[Any], data: Any) -> Any:
        def slope(vectors: list[Any]) -> Any:
            _, gradient = self._flattening.value_and_gradient(
                lambda: self._function(data), vectors[0], differentiable=True
            )
            return ops.sum(gradient * direction)

        with Given(self._others, values):
            _, (product,) = backend.value_and_gradients(slope, [vector])
        return product
