"""Evaluate a loss and constraints as functions of one vector, in eager code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine import backend
from keras_tfopt.legacy.loss_gradients import checked_loss, gradients_of_loss
from keras_tfopt.solvers.flat import FlatFunction, Flattening
from keras_tfopt.trainer import dense


class EagerProblem:
    """A loss and constraints, functions without arguments, seen as functions of one vector.

    Attributes:
        variables: The variables whose values make up the vector.
        shapes: Their shapes.
        places: The positions of the equalities and of the inequalities among the functions.
    """

    def __init__(self, loss: Any, var_list: Any, equalities: list[Any], inequalities: list[Any]):
        self._functions = [loss, *equalities, *inequalities]
        for name, function in (
            ("loss", loss),
            *(("equalities", one) for one in equalities),
            *(("inequalities", one) for one in inequalities),
        ):
            if not callable(function):
                raise TypeError(
                    f"Argument `{name}` must be a function without arguments in eager code, or in "
                    f"a list of these if there may be several. Received: {function!r}"
                )
        if var_list is None:
            var_list = [variable for _, variable in gradients_of_loss(loss, None)]
        self.variables = list(var_list)
        self._flattening = Flattening(self.variables)
        self.shapes = self._flattening.shapes
        first = 1 + len(equalities)
        self.places = range(1, first), range(first, len(self._functions))

    def at(self, session: Any, feed_dict: Any, fetches: list[Any]) -> EagerProblem:
        """Return the problem itself, or raise an error for a session or values to feed."""
        if session is not None or feed_dict:
            raise ValueError(
                "Arguments `session` and `feed_dict` must be None in eager code. Received: "
                f"{session!r}, {feed_dict!r}"
            )
        self._fetches: list[Callable] = fetches
        self._compiled = {}
        if keras.backend.backend() == "jax":  # where single operations are very slow
            self._compiled = {
                place: FlatFunction(functools.partial(_of_nothing, function), self._flattening, [])
                for place, function in enumerate(self._functions)
            }
        return self

    def read(self) -> np.ndarray:
        """Return the current values of the variables as one vector."""
        return self._flattening.read()

    def assign(self, x: np.ndarray) -> None:
        """Assign the values of a vector to the variables."""
        self._flattening.assign(x)

    def evaluate(self, x: np.ndarray, place: int) -> tuple[Any, np.ndarray]:
        """Return the value of a function at a point, and its gradient."""
        self.assign(x)
        if place in self._compiled:
            return self._compiled[place](x, None)
        value, gradients, _ = backend.loss_and_gradients(
            lambda: checked_loss(self._functions[place]()), self.variables, None, []
        )
        parts = [
            np.ravel(ops.convert_to_numpy(dense(gradient, variable)))
            for gradient, variable in zip(gradients, self.variables, strict=True)
        ]
        return ops.convert_to_numpy(value)[()], np.concatenate(parts)

    def fetch(self) -> list[Any]:
        """Return the values of the fetches at the last point."""
        return [ops.convert_to_numpy(one() if callable(one) else one) for one in self._fetches]


def _of_nothing(function: Callable, data: None) -> Any:
    return checked_loss(function())
