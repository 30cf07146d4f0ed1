"""Bounds and constraints on the variables of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tfopt.engine import Like, check_choice, is_chosen, path_of
from keras_tfopt.engine.arguments.options import takes
from keras_tfopt.engine.arguments.selection import near_paths, shown
from keras_tfopt.solvers.flat import FlatFunction, Flattening


def non_negative(flattening: Flattening) -> dict[str, str]:
    """Return the paths of variables with the constraint `NonNeg` of a layer, each with that name.

    Raises:
        ValueError: for other constraints of layers, which are functions that solvers cannot use,
            and for scales of float8, which have no gradients.
    """
    found = {}
    for variable in flattening.variables:
        if variable.overwrite_with_gradient:
            raise ValueError(
                "Argument `model` must have no layers of float8: each step overwrites their "
                f"scales, which have no gradients. Received: {path_of(variable)!r}"
            )
        if variable.constraint is None:
            continue
        path, name = path_of(variable), type(variable.constraint).__name__
        if not isinstance(variable.constraint, keras.constraints.NonNeg):
            raise ValueError(
                "Argument `model` must have no constraints of layers but NonNeg: use `bounds` or "
                f"`constraints`. Received: {name} of {path!r}"
            )
        found[path] = name
    return found


def bounds_of(
    bounds: Any, of_layers: Mapping[str, str], flattening: Flattening
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and the highest value of each number, or raise an error.

    Args:
        bounds: None, or a dictionary from patterns for paths to pairs `(low, high)`.
        of_layers: The result of `non_negative`.
        flattening: The variables.
    """
    if bounds is None:
        bounds = {}
    if isinstance(bounds, Mapping) and not (bounds or of_layers):
        return None
    if not isinstance(bounds, Mapping):
        raise TypeError(
            "Argument `bounds` must be a dictionary from regular expressions for paths of "
            f"variables to pairs (low, high). Received: {bounds!r}"
        )
    likes = [
        Like(shape, dtype, path_of(variable))
        for variable, shape, dtype in zip(
            flattening.variables, flattening.shapes, flattening.dtypes, strict=True
        )
    ]
    lows = [np.full(shape, -np.inf) for shape in flattening.shapes]
    highs = [np.full(shape, np.inf) for shape in flattening.shapes]
    taken: dict[int, Any] = {}
    for choice, pair in bounds.items():
        checked = check_choice("bounds", choice)
        places = [n for n, like in enumerate(likes) if is_chosen(like, checked)]
        if not places:
            raise ValueError(
                f"Argument `bounds` must have patterns that match variables of the model. "
                f"Received: {shown(checked)!r}. Near names: {near_paths(shown(checked), likes)}"
            )
        for n in places:
            if n in taken:
                raise ValueError(
                    f"Argument `bounds` must have one pattern for a variable. Received: "
                    f"{taken[n]!r} and {shown(checked)!r}, which both match {likes[n].path!r}"
                )
            taken[n] = shown(checked)
            lows[n], highs[n] = _pair(pair, likes[n])
    for n, like in enumerate(likes):
        if like.path in of_layers:
            lows[n], highs[n] = _pair((np.maximum(lows[n], 0.0), highs[n]), like)
    return tuple(np.concatenate([part.ravel() for part in side]) for side in (lows, highs))  # type: ignore[return-value]


def _pair(pair: Any, like: Like) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"Argument `bounds` must have pairs (low, high). Received: {pair!r} for {like.path!r}"
        )
    sides = []
    for bound, none in zip(pair, (-np.inf, np.inf), strict=True):
        try:
            side = np.asarray(none if bound is None else bound, float)
            sides.append(np.broadcast_to(side, like.shape).astype(float))
        except (TypeError, ValueError):
            raise ValueError(
                f"Argument `bounds` must have numbers, None, or arrays that can be broadcast to "
                f"the shape {like.shape} of {like.path!r}. Received: {bound!r}"
            ) from None
    low, high = sides
    if not np.all(low <= high):  # NaN, too
        raise ValueError(
            f"Argument `bounds` must have low <= high. Received: {pair!r} for {like.path!r}"
        )
    return low, high


def constraints_of(constraints: Any, model: Any, flattening: Flattening) -> list[dict[str, Any]]:
    """Return constraints in the form that SciPy takes, or raise an error.

    Args:
        constraints: Dictionaries with "type", "eq" or "ineq", and "fun", a function of the model.
        model: The model.
        flattening: Its trainable variables.
    """
    if isinstance(constraints, Mapping):
        constraints = [constraints]
    if not isinstance(constraints, Sequence):
        raise TypeError(
            f"Argument `constraints` must be a list of dictionaries. Received: {constraints!r}"
        )
    found = []
    for one in constraints:
        _check_constraint(one)
        function = FlatFunction(
            _of_model(one["fun"], model), flattening, model.non_trainable_variables
        )
        found.append({"type": one["type"], **_with_gradient(function)})
    return found


def _check_constraint(one: Any) -> None:
    known = isinstance(one, Mapping) and set(one) == {"type", "fun"}
    known = known and one["type"] in ("eq", "ineq") and callable(one["fun"])
    if not known or not takes(one["fun"], None):
        raise ValueError(
            "Argument `constraints` must have dictionaries with `type`, 'eq' (the function is 0) "
            "or 'ineq' (it is >= 0), and `fun`, a function of the model that returns a scalar "
            f"tensor. Received: {one!r}"
        )


def _of_model(function: Any, model: Any) -> Any:
    def of_data(data: Any) -> Any:
        value = keras.ops.convert_to_tensor(function(model))
        if tuple(value.shape) != ():
            raise ValueError(
                "Argument `constraints` must have functions that return a scalar tensor; several "
                f"numbers are several constraints. Received: shape {tuple(value.shape)}"
            )
        return value

    return of_data


def _with_gradient(function: FlatFunction) -> dict[str, Any]:
    return {
        "fun": lambda x: function.value(x, None),
        "jac": lambda x: function(x, None)[1].astype(float),
    }
