"""Choosing the variables of a model that a wrapper acts on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_tfopt.execution import Like, check_savable, compile_patterns, path_of
from keras_tfopt.rule import register


def pattern_of(variable: Any) -> str:
    """The regular expression that matches the path of this variable, or this path, and no other."""
    return f"^{re.escape(variable if isinstance(variable, str) else path_of(variable))}$"


def check_choice(name: str, choice: Any) -> Any:
    """Returns a choice of variables, those given as such by their paths; or raises an error."""
    if choice is None or isinstance(choice, re.Pattern):
        return choice
    if callable(choice):
        check_savable(name, choice)
        return choice
    given = choice if isinstance(choice, (list, tuple)) else [choice]
    for item in given:
        if not isinstance(item, (str, re.Pattern, keras.Variable)):
            raise TypeError(
                f"Argument `{name}` must be None, a function of a variable, or variables and "
                f"regular expressions for their paths, one or a list. Received: {choice!r}"
            )
    patterns = [pattern_of(v) if isinstance(v, keras.Variable) else v for v in given]
    compile_patterns(name, patterns)
    return patterns if isinstance(choice, (list, tuple)) else patterns[0]


def is_chosen(like: Like, choice: Any) -> bool:
    """Whether a variable is among the chosen ones; None and no patterns at all are every one."""
    if choice is None or (isinstance(choice, (list, tuple)) and not choice):
        return True
    if callable(choice):
        return bool(choice(like))
    return any(p.search(like.path) for p in compile_patterns("", choice))


def check_choice_matches(name: str, choice: Any, likes: Sequence[Like]) -> None:
    """Raises an error if a pattern, or the function, chooses no variable at all."""
    if choice is None:
        return
    parts = choice if isinstance(choice, (list, tuple)) else [choice]
    check_each_matches(name, parts, lambda part, like: is_chosen(like, part), likes)


def check_each_matches(
    name: str, parts: Iterable[Any], matches: Callable[[Any, Like], bool], likes: Sequence[Like]
) -> None:
    """Raises an error if one of the parts of an argument matches none of the variables."""
    for part in parts:
        if not any(matches(part, like) for like in likes):
            raise ValueError(
                f"Argument `{name}` must match variables of the model, which has the paths "
                f"{[like.path for like in likes]}. Received, with no match: {part!r}"
            )


@register
def no_vectors(variable: Any) -> bool:
    """A choice of variables: those of two dimensions or more, so no biases, scales, scalars.

    Args:
        variable: A variable, or what has its `shape`.

    Example:

    >>> optimizer = keras_tfopt.AdamW(1e-4, decay_variables=keras_tfopt.no_vectors)
    """
    return len(variable.shape) > 1
