"""Dimensions of variables, given by patterns for their paths or by a function."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras

from keras_tfopt.execution import Like, check_savable, compile_patterns
from keras_tfopt.wrappers.choice import check_each_matches, is_chosen, pattern_of

NAME = "vars_to_clip_dims"


def check_dims(value: Any) -> Any:
    """Returns the dimensions by pattern, or raises an error that names the argument."""
    if callable(value):
        check_savable(NAME, value)
        return value
    pairs = list(value.items()) if isinstance(value, dict) else value
    is_list = isinstance(pairs, (list, tuple)) and bool(pairs)
    if not is_list or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise TypeError(
            f"Argument `{NAME}` must be a dictionary from regular expressions to dimensions, a "
            "list of pairs of a variable or a regular expression and dimensions, or a function. "
            f"Received: {value!r}"
        )
    for key, dims in pairs:
        if not isinstance(key, keras.Variable):
            try:
                compile_patterns(NAME, key)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error}, in {value!r}") from None
        whole = isinstance(dims, (list, tuple))
        if not whole or not all(isinstance(dim, numbers.Integral) for dim in dims):
            raise TypeError(f"Argument `{NAME}` must give lists of integers. Received: {value!r}")
    return {
        pattern_of(key) if isinstance(key, keras.Variable) else key: [int(dim) for dim in dims]
        for key, dims in pairs
    }


def dims_of(like: Like, value: Any) -> tuple[int, ...] | None:
    """The dimensions for a variable, counted from the first, or None if there are none for it."""
    if callable(value):
        dims = value(like)
    else:
        dims = next((dims for key, dims in value.items() if is_chosen(like, key)), None)
    if dims is None:
        return None
    rank = len(like.shape)
    if not all(-rank <= dim < rank for dim in dims):
        raise ValueError(
            f"Argument `{NAME}` must name dimensions of {like.path!r}, which has the shape "
            f"{like.shape}. Received: {dims!r}"
        )
    return tuple(sorted({dim % rank for dim in dims}))


def check_dims_match(value: Any, likes: Sequence[Like]) -> None:
    """Raises an error if a pattern matches no variable, or a dimension does not exist."""
    if callable(value):
        check_each_matches(NAME, [value], lambda f, like: f(like) is not None, likes)
    else:
        check_each_matches(NAME, value, lambda key, like: is_chosen(like, key), likes)
    for like in likes:
        dims_of(like, value)
