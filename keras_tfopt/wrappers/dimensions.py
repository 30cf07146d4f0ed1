"""Dimensions of variables, given by patterns for their paths or by a function."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_tfopt.engine import Like, check_choice, is_chosen, pattern_of, settled, takes

NAME = "vars_to_clip_dims"


def check_dims(value: Any) -> Any:
    """Return the dimensions by pattern, or raise an error that names the argument."""
    if callable(value):
        if not takes(value, None):
            raise TypeError(f"Argument `{NAME}` must take a variable. Received: {value!r}")
        return value
    pairs = list(value.items()) if isinstance(value, dict) else value
    is_list = isinstance(pairs, (list, tuple))
    if not is_list or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise TypeError(
            f"Argument `{NAME}` must be a dictionary from regular expressions to dimensions, a "
            "list of pairs of a variable, a regular expression or a function of a variable and "
            f"dimensions, or a function that gives dimensions. Received: {value!r}"
        )
    found: list[tuple[Any, list[int]]] = []
    for key, dims in pairs:
        try:
            chosen = pattern_of(key) if isinstance(key, keras.Variable) else check_choice(NAME, key)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}, in {value!r}") from None
        if not _are_dims(dims):
            raise TypeError(f"Argument `{NAME}` must give lists of integers. Received: {value!r}")
        found.append((chosen, [int(dim) for dim in dims]))
    # Only strings can be keys in JSON.
    return dict(found) if all(isinstance(chosen, str) for chosen, _ in found) else found


def _are_dims(dims: Any) -> bool:
    is_list = isinstance(dims, (list, tuple))
    return is_list and all(isinstance(dim, numbers.Integral) for dim in dims)


def dims_of(like: Like, value: Any) -> tuple[int, ...] | None:
    """Return the dimensions for a variable, counted from the first; None if there are none."""
    if callable(value):
        dims = value(like)
    else:
        dims = next((dims for key, dims in _pairs(value) if is_chosen(like, key)), None)
    if dims is None:
        return None
    if not _are_dims(dims):
        raise TypeError(
            f"Argument `{NAME}` must return a list of integers, or None. Received: {dims!r} for "
            f"{like.path!r}"
        )
    rank = len(like.shape)
    if not all(-rank <= dim < rank for dim in dims):
        raise ValueError(
            f"Argument `{NAME}` must name dimensions of {like.path!r}, which has the shape "
            f"{like.shape}. Received: {dims!r}"
        )
    return tuple(sorted({dim % rank for dim in dims}))


def clipped(value: Any) -> Any:
    """Return what chooses the variables that have dimensions."""
    if not callable(value):
        return [key for key, _ in _pairs(value)]

    @functools.wraps(value)
    def is_clipped(like: Like) -> bool:
        return value(like) is not None

    return [is_clipped]


def settled_dims(value: Any, likes: Sequence[Like]) -> Any:
    """Return the dimensions by the paths that the variables have now."""
    if callable(value):
        return value
    return check_dims([(settled(key, likes), dims) for key, dims in _pairs(value)])


def _pairs(value: Any) -> Iterable[tuple[Any, Sequence[int]]]:
    return value.items() if isinstance(value, dict) else value
