"""Evaluate a loss and constraints of a graph as functions of one vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tfopt.legacy.graph.backend import dtype_of, group, in_a_graph, native, read, shape_of, v1
from keras_tfopt.legacy.graph.backend import write as assigned
from keras_tfopt.legacy.problem import EagerProblem


def problem_of(loss: Any, var_list: Any, equalities: list[Any], inequalities: list[Any]) -> Any:
    """Return a problem in the graph that is being built, or in eager code."""
    kind = GraphProblem if in_a_graph() else EagerProblem
    return kind(loss, var_list, equalities, inequalities)


def log(text: str) -> None:
    """Write to the log of TensorFlow."""
    v1.logging.info("%s", text)


class GraphProblem:
    """Loss and constraints as tensors of a graph, which are evaluated in a session."""

    def __init__(self, loss: Any, var_list: Any, equalities: list[Any], inequalities: list[Any]):
        self._tensors = [loss, *equalities, *inequalities]
        for one in self._tensors:
            if not tf.is_tensor(one):
                raise TypeError(
                    "Arguments `loss`, `equalities` and `inequalities` must be tensors in a graph, "
                    f"the latter two in lists. Received: {one!r}"
                )
        self.variables = list(v1.trainable_variables() if var_list is None else var_list)
        self.shapes = [shape_of(variable) for variable in self.variables]
        self._ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        first = 1 + len(equalities)
        self.places = range(1, first), range(first, len(self._tensors))
        natives = [native(variable) for variable in self.variables]
        self._values = [read(variable) for variable in self.variables]
        self._gradients = [_gradients(tensor, natives) for tensor in self._tensors]
        pairs = zip(natives, self.shapes, strict=True)
        self._new = [v1.placeholder(dtype_of(v), s) for v, s in pairs]
        moves = zip(self.variables, self._new, strict=True)
        self._assign = group(*[assigned(variable, value) for variable, value in moves])

    def at(self, session: Any, feed_dict: Any, fetches: list[Any]) -> _InSession:
        """Return the problem in a session."""
        session = session or v1.get_default_session()
        if session is None:
            raise ValueError(
                "Argument `session` must be a session where none is the default. Received: None"
            )
        return _InSession(self, session, feed_dict, fetches)


class _InSession:
    def __init__(self, problem: GraphProblem, session: Any, feed_dict: Any, fetches: list[Any]):
        self._problem, self._session = problem, session
        self._feed_dict, self._fetches = feed_dict, fetches
        self._fetched: list[Any] = []

    def read(self) -> np.ndarray:
        """Return the current values of the variables as one vector."""
        return _joined(self._session.run(self._problem._values))

    def assign(self, x: np.ndarray, **run_kwargs: Any) -> None:
        """Assign the values of a vector to the variables."""
        problem = self._problem
        parts = zip(problem._new, np.split(x, problem._ends), problem.shapes, strict=True)
        values = {new: part.reshape(shape) for new, part, shape in parts}
        self._session.run(problem._assign, feed_dict=values, **run_kwargs)

    def evaluate(self, x: np.ndarray, place: int) -> tuple[Any, np.ndarray]:
        """Return the value of a tensor at a point, and its gradient."""
        self.assign(x)
        wanted = self._problem._tensors[place], self._problem._gradients[place], self._fetches
        value, gradients, self._fetched = self._session.run(wanted, feed_dict=self._feed_dict)
        return value, _joined(gradients)

    def fetch(self) -> list[Any]:
        """Return the values of the fetches at the last point."""
        return self._fetched


def _gradients(tensor: Any, variables: list[Any]) -> list[Any]:
    found = v1.gradients(tensor, variables)
    return [
        tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, variable in zip(found, variables, strict=True)
    ]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in arrays])
