"""Minimize a loss by an algorithm outside of the backend, under the names of `tf.contrib.opt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_tfopt.engine import is_variable, path_of
from keras_tfopt.legacy.select import running
from keras_tfopt.solvers.methods import scipy_optimize

# What `_minimize` gets: a function from a vector to a list of values.
Function = Callable[[np.ndarray], list[Any]]


class ExternalOptimizerInterface:
    """Minimize a loss by an algorithm that sees the variables as one vector of NumPy.

    A subclass defines `_minimize`. In a graph of TensorFlow, losses and constraints are scalar
    tensors; in eager code, on every backend, they are functions without arguments.

    Args:
        loss: Scalar tensor of the graph; in eager code, a function that returns one.
        var_list: List of variables. None is those that can be trained: of the graph, or those that
            the loss reads.
        equalities: List of tensors or functions like `loss` that are to be zero, or None.
        inequalities: List of those that are to be at least zero, or None.
        var_to_bounds: Dictionary from variables to pairs `(low, high)` of numbers, None, or arrays
            that can be broadcast to the variable's shape. It may be a list of pairs of a variable
            and its bounds, for variables that cannot be keys of a dictionary. Defaults to None.
        **optimizer_kwargs: Arguments of the algorithm.

    Raises:
        TypeError: if a loss or constraint is of the wrong kind.
        ValueError: if bounds are for no variable of the list, or have a wrong shape.

    Differences: each evaluation assigns the point to the variables;
    `tf.contrib.opt.ExternalOptimizerInterface` feeds it, which does not work for resource
    variables. After an error the variables have their first values again. On JAX, functions are
    compiled once in each call of `minimize`: other values that they read are fixed then, and what
    they assign is dropped.
    """

    def __init__(
        self,
        loss: Any,
        var_list: Any = None,
        equalities: Any = None,
        inequalities: Any = None,
        var_to_bounds: Any = None,
        **optimizer_kwargs: Any,
    ):
        self._loss = loss
        self._problem = running.problem_of(
            loss, var_list, _listed("equalities", equalities), _listed("inequalities", inequalities)
        )
        self._vars = self._problem.variables
        if not self._vars:
            raise ValueError(
                "Argument `var_list` must have variables, or `loss` depend on some. Received: "
                f"{var_list!r}"
            )
        self._packed_bounds = _packed(var_to_bounds, self._vars, self._problem.shapes)
        self.optimizer_kwargs = optimizer_kwargs

    def minimize(
        self,
        session: Any = None,
        feed_dict: Any = None,
        fetches: Any = None,
        step_callback: Callable | None = None,
        loss_callback: Callable | None = None,
        **run_kwargs: Any,
    ) -> None:
        """Minimize the loss, and assign the result to the variables.

        Args:
            session: The session of a graph; None is the default one, and eager code.
            feed_dict: Values of placeholders in a graph, or None.
            fetches: List of tensors, or of functions in eager code, for `loss_callback`.
            step_callback: Function that is called with the vector after each iteration.
            loss_callback: Function that is called with the values of `fetches` at each evaluation
                of the loss.
            **run_kwargs: Arguments of the `session.run` that assigns the result.
        """
        problem = self._problem.at(session, feed_dict or {}, list(fetches or []))
        start = problem.read()

        def function(place: int, gradient: bool) -> Function:
            return lambda x: [problem.evaluate(x, place)[gradient]]

        def loss_and_gradient(x: np.ndarray) -> list[Any]:
            value, gradient = problem.evaluate(x, 0)
            if loss_callback is not None:
                loss_callback(*problem.fetch())
            return [value, gradient]

        equal, unequal = self._problem.places
        try:
            found = self._minimize(
                initial_val=start,
                loss_grad_func=loss_and_gradient,
                equality_funcs=[function(place, False) for place in equal],
                equality_grad_funcs=[function(place, True) for place in equal],
                inequality_funcs=[function(place, False) for place in unequal],
                inequality_grad_funcs=[function(place, True) for place in unequal],
                packed_bounds=self._packed_bounds,
                step_callback=step_callback or (lambda x, *state: None),
                optimizer_kwargs=self.optimizer_kwargs,
            )
        except BaseException:
            problem.assign(start)
            raise
        problem.assign(np.asarray(found), **run_kwargs)

    def _minimize(
        self,
        initial_val: np.ndarray,
        loss_grad_func: Function,
        equality_funcs: list[Function],
        equality_grad_funcs: list[Function],
        inequality_funcs: list[Function],
        inequality_grad_funcs: list[Function],
        packed_bounds: list[tuple[float, float]] | None,
        step_callback: Callable,
        optimizer_kwargs: Mapping[str, Any],
    ) -> Any:
        """Return the vector with the smallest loss.

        Args:
            initial_val: The vector of the variables' values.
            loss_grad_func: Function from a vector to a list of loss and gradient.
            equality_funcs: Functions from a vector to a list of one value, which is to be zero.
            equality_grad_funcs: Functions from a vector to a list of the gradient of that value.
            inequality_funcs: As `equality_funcs`, for values that are to be at least zero.
            inequality_grad_funcs: Their gradients.
            packed_bounds: A pair for each number of the vector, or None.
            step_callback: Function to call with the vector after each iteration.
            optimizer_kwargs: Arguments of the algorithm.
        """
        raise NotImplementedError(
            "To use ExternalOptimizerInterface, subclass from it and implement the _minimize() "
            "method."
        )


class ScipyOptimizerInterface(ExternalOptimizerInterface):
    """Minimize a loss by `scipy.optimize.minimize`, with bounds and constraints.

    SciPy is the extra `solvers`.

    Args:
        loss: Scalar tensor of the graph; in eager code, a function that returns one.
        var_list: List of variables, or None for those that can be trained.
        equalities: List of tensors or functions that are to be zero, or None.
        inequalities: List of those that are to be at least zero, or None.
        var_to_bounds: Dictionary, or list of pairs, from variables to `(low, high)`, or None. See
            `ExternalOptimizerInterface`.
        **optimizer_kwargs: `method`, the name of a method of SciPy, which defaults to "L-BFGS-B";
            `options`, a dictionary of the method's options; and other arguments of
            `scipy.optimize.minimize`, except those that the interface sets: `jac`, `callback`,
            `constraints`, `bounds`.

    Example:

    >>> w = keras.Variable([4.0, -2.0])
    >>> interface = keras_tfopt.legacy.ScipyOptimizerInterface(
    ...     lambda: ops.sum(w**2), [w], inequalities=[lambda: w[0] - 1.0], method="SLSQP"
    ... )
    >>> interface.minimize()

    In a graph, tensors take the place of the functions: `interface.minimize(session)`.

    Differences: those of `ExternalOptimizerInterface`, and those between versions of SciPy.
    """

    _DEFAULT_METHOD = "L-BFGS-B"

    def _minimize(
        self,
        initial_val: np.ndarray,
        loss_grad_func: Function,
        equality_funcs: list[Function],
        equality_grad_funcs: list[Function],
        inequality_funcs: list[Function],
        inequality_grad_funcs: list[Function],
        packed_bounds: list[tuple[float, float]] | None,
        step_callback: Callable,
        optimizer_kwargs: Mapping[str, Any],
    ) -> Any:
        def in_float64(x: np.ndarray) -> tuple[Any, Any]:
            value, gradient = loss_grad_func(x)
            return value, gradient.astype("float64")

        constraints = [
            {"type": kind, "fun": function, "jac": gradient}
            for kind, functions, gradients in (
                ("eq", equality_funcs, equality_grad_funcs),
                ("ineq", inequality_funcs, inequality_grad_funcs),
            )
            for function, gradient in zip(functions, gradients, strict=True)
        ]
        given = {"method": self._DEFAULT_METHOD, **optimizer_kwargs}
        arguments = {
            "jac": True,
            "callback": step_callback,
            "method": given.pop("method"),
            "constraints": constraints,
            "bounds": packed_bounds,
        }
        for name in arguments:
            if name in given and name == "bounds":
                raise ValueError("Bounds must be set using the var_to_bounds argument")
            if name in given:
                raise ValueError(
                    f"Optimizer keyword arg '{name}' is set automatically and cannot be injected "
                    "manually"
                )
        start = initial_val.astype("float64")  # SLSQP refuses float32
        result = scipy_optimize().minimize(in_float64, start, **{**arguments, **given})
        lines = [
            "Optimization terminated with:",
            f"  Message: {result.message}",
            f"  Objective function value: {result.fun:f}",
        ]
        for name, text in (("nit", "iterations"), ("nfev", "functions evaluations")):
            if hasattr(result, name):
                lines.append(f"  Number of {text}: {result[name]}")
        running.log("\n".join(lines))
        return result.x


def _listed(name: str, value: Any) -> list[Any]:
    """Return constraints as a list, or raise an error."""
    if value is not None and not isinstance(value, (list, tuple)):
        raise TypeError(
            f"Argument `{name}` must be a list of what `loss` is one of, or None. "
            f"Received: {value!r}"
        )
    return list(value or [])


def _packed(
    bounds: Any, variables: list[Any], shapes: list[tuple[int, ...]]
) -> list[tuple[float, float]] | None:
    """Return a pair of bounds for each number of the variables, or raise an error."""
    if bounds is None:
        return None
    pairs = list(bounds.items() if isinstance(bounds, Mapping) else bounds)
    for variable, pair in pairs:
        if not any(variable is one for one in variables):
            shown = path_of(variable) if is_variable(variable) else variable
            raise ValueError(
                "Argument `var_to_bounds` must have variables of `var_list`. Received: "
                f"{shown!r} with {pair!r}"
            )
    packed: list[tuple[float, float]] = []
    for one, shape in zip(variables, shapes, strict=True):
        pair = next((pair for variable, pair in pairs if variable is one), (None, None))
        try:
            low, high = (
                np.broadcast_to(np.asarray(none if side is None else side, float), shape)
                for side, none in zip(pair, (-np.inf, np.inf), strict=True)
            )
        except (TypeError, ValueError):
            raise ValueError(
                "Argument `var_to_bounds` must have pairs (low, high) of numbers, None, or arrays "
                f"that can be broadcast to the shape {shape} of the variable. Received: {pair!r}"
            ) from None
        packed += zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
    return packed
