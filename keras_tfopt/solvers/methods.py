"""The methods of `scipy.optimize.minimize`: what they need and what they take."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from keras_tfopt.checks import check_integer
from keras_tfopt.engine import did_you_mean

WITHOUT_GRADIENTS = 1_000
"""The most parameters for methods without gradients, which need many evaluations for each."""

WITH_MATRIX = 10_000
"""The most parameters for methods that keep a square matrix: 800 MB in float64."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of SciPy.

    Attributes:
        name: Its name.
        gradient: Whether it takes gradients.
        hessian: What it takes of second derivatives: nothing, "product" or "matrix".
        bounds: Whether it takes bounds.
        constraints: Whether it takes constraints.
        matrix: Whether it keeps a matrix with a row and a column for each parameter.
    """

    name: str
    gradient: bool = True
    hessian: str = ""
    bounds: bool = False
    constraints: bool = False
    matrix: bool = False


METHODS = {
    method.name.lower(): method
    for method in (
        Method("Nelder-Mead", gradient=False, bounds=True, matrix=True),
        Method("Powell", gradient=False, bounds=True, matrix=True),
        Method("COBYLA", gradient=False, bounds=True, constraints=True, matrix=True),
        Method("COBYQA", gradient=False, bounds=True, constraints=True, matrix=True),
        Method("CG"),
        Method("BFGS", matrix=True),
        Method("L-BFGS-B", bounds=True),
        Method("TNC", bounds=True),
        Method("SLSQP", bounds=True, constraints=True, matrix=True),
        Method("Newton-CG", hessian="product"),
        Method("trust-ncg", hessian="product"),
        Method("trust-krylov", hessian="product"),
        Method("trust-constr", hessian="product", bounds=True, constraints=True),
        Method("dogleg", hessian="matrix", matrix=True),
        Method("trust-exact", hessian="matrix", matrix=True),
    )
}


def scipy_optimize() -> Any:
    """Return `scipy.optimize`, or raise an error that says how to install it."""
    try:
        return importlib.import_module("scipy.optimize")
    except ImportError as error:
        raise ImportError(
            "keras_tfopt.solvers and the interfaces to SciPy need SciPy, which is not installed: "
            "pip install 'keras_tfopt[solvers]'"
        ) from error


def method_of(name: Any) -> Method:
    """Return the method of a name, or raise an error."""
    if not isinstance(name, str):
        raise TypeError(f"Argument `method` must be a string. Received: {name!r}")
    if name.lower() not in METHODS:
        names = [method.name for method in METHODS.values()]
        raise ValueError(
            f"Argument `method` must be one of {names}. Received: {name!r}. "
            + did_you_mean(name, names)
        )
    return METHODS[name.lower()]


def _with(what: str) -> list[str]:
    return [method.name for method in METHODS.values() if getattr(method, what)]


def check_method(method: Method, size: int, bounds: Any, constraints: Any) -> None:
    """Raise an error where a method cannot do what it is asked for."""
    for what, given in (("bounds", bounds), ("constraints", constraints)):
        if given and not getattr(method, what):
            raise ValueError(
                f"Argument `{what}` must be empty with the method {method.name!r}, which has none. "
                f"Methods with {what} are {_with(what)}. Received: {given!r}"
            )
    if not method.gradient and size > WITHOUT_GRADIENTS:
        raise ValueError(
            f"Argument `method` must be one with gradients, such as 'L-BFGS-B', for more than "
            f"{WITHOUT_GRADIENTS:,} parameters. Received: {method.name!r} for {size:,} parameters"
        )
    if method.matrix and size > WITH_MATRIX:
        raise ValueError(
            f"Argument `method` must be one without a square matrix of all parameters, such as "
            f"'L-BFGS-B', for more than {WITH_MATRIX:,} of them. Received: {method.name!r} for "
            f"{size:,} parameters"
        )


def check_options(method: Method, options: Any) -> dict[str, Any]:
    """Return the options of a method, or raise an error for one that it does not have.

    SciPy itself says which it knows: it solves a problem of one number with them.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"Argument `options` must be a dictionary. Received: {options!r}")
    options = dict(options or {})
    optimize = scipy_optimize()
    quiet = {"disp": False} if "disp" in options else {}
    derivatives: dict[str, Any] = {"jac": lambda x: 2 * x} if method.gradient else {}
    if method.hessian:
        derivatives["hess"] = lambda x: [[2.0]]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            optimize.minimize(
                lambda x: float(x[0] ** 2),
                [1.0],
                method=method.name,
                options={**options, **quiet},
                **derivatives,
            )
        except Exception:
            pass  # an array for more parameters than one, which the solver itself will read
    for one in caught:
        text = str(one.message)
        if issubclass(one.category, optimize.OptimizeWarning) and "Unknown solver option" in text:
            unknown = text.partition(":")[2].strip()
            raise ValueError(
                f"Argument `options` must have options of the method {method.name!r}, see "
                f"scipy.optimize.show_options('minimize', {method.name!r}). Received: {unknown}"
            )
    if options.get("maxiter") is not None:
        check_integer("options['maxiter']", options["maxiter"], 0)
    return options
