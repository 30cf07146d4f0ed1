"""Choose variables of a model: by patterns for their paths, by functions, or one by one."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_tfopt.engine.arguments.options import DEFAULTS, takes
from keras_tfopt.engine.arguments.suggestions import nearest
from keras_tfopt.engine.keras_private import layers_in
from keras_tfopt.engine.state.building import path_of
from keras_tfopt.engine.state.state import Like

PATHS = "variable_paths"  # the entry of `Optimizer.saved_paths` in configurations
NORMALIZATION = re.compile(r"Norm(alization)?(\d[dD])?$")
_BIAS = re.compile(r"(^|_)bias(es)?(_|$)")


def pattern_of(variable: Any) -> str:
    """Return the regular expression that matches only the path of this variable, or this path."""
    return f"^{re.escape(variable if isinstance(variable, str) else path_of(variable))}$"


def check_choice(name: str, choice: Any, literal: bool = False) -> Any:
    """Return a choice of variables, with patterns instead of variables, or raise an error.

    With `literal`, strings are parts of paths and must be in a list.
    """
    several = isinstance(choice, (list, tuple))
    parts = [_checked(name, part, choice, literal) for part in (choice if several else [choice])]
    if several:
        return parts
    if not (literal and isinstance(choice, str)):
        return parts[0]
    raise TypeError(f"Argument `{name}` must be a list, not a string. Received: {choice!r}")


def _checked(name: str, part: Any, choice: Any, literal: bool) -> Any:
    if isinstance(part, keras.Variable):
        return re.compile(pattern_of(part))
    if isinstance(part, re.Pattern) or (part is None and choice is None):
        return part
    if isinstance(part, str):
        try:
            return part if literal or re.compile(part) else None
        except re.error as error:
            raise ValueError(
                f"Argument `{name}` must have regular expressions ({error}). Received: {choice!r}"
            ) from None
    if callable(part) and takes(part, None):
        return part
    raise TypeError(
        f"Argument `{name}` must be None, a function of a variable, a variable or a regular "
        f"expression for paths of variables, or a list of these. Received: {choice!r}"
    )


def literal(choice: Any) -> Any:
    """Return a choice with regular expressions instead of literal strings.

    Names of TensorFlow end with `:0`, which paths do not have.
    """
    if not isinstance(choice, (list, tuple)):
        return choice
    return [
        re.compile(re.escape(part.removesuffix(":0")) + "$" * part.endswith(":0"))
        if isinstance(part, str)
        else part
        for part in choice
    ]


def parts_of(choice: Any) -> Sequence[Any]:
    """Return the patterns and functions of a choice, an empty list for None."""
    if choice is None:
        return []
    return choice if isinstance(choice, (list, tuple)) else [choice]


def is_chosen(like: Like, choice: Any) -> bool:
    """Return whether one of the patterns and functions of a choice matches a variable."""
    return any(
        bool(part(like)) if callable(part) else _compiled(part).search(like.path) is not None
        for part in parts_of(choice)
    )


_compiled = functools.lru_cache(maxsize=10_000)(re.compile)  # a list may have all of a model


def shown(part: Any) -> str:
    """Return the text of a pattern, or the name of a function, for reports."""
    return str(getattr(part, "pattern", None) or getattr(part, "__name__", part))


def excluding(optimizer: Any, var_list: Any, var_names: Any) -> list[Any]:
    """Return the patterns for arguments of `exclude_from_weight_decay`, or raise an error."""
    if optimizer.built:
        raise ValueError(
            "`exclude_from_weight_decay` must be called before the optimizer is built, because "
            "compiled steps have the selection built in."
        )
    is_list = isinstance(var_names, Iterable) and not isinstance(var_names, str)
    names = [] if var_names is None else list(var_names) if is_list else [var_names]
    return check_choice("var_names", names) + [pattern_of(v) for v in var_list or []]


def named_as_saved(likes: list[Like], paths: Sequence[str]) -> list[Like]:
    """Return the facts of variables with the paths that they had when a file was written.

    Patterns and functions are about those. Paths begin with the name of a `keras.Sequential`, for
    instance, until a model is loaded. For another model, return its own paths.
    """
    names = [[path.rsplit("/")[-1] for path in some] for some in (paths, [x.path for x in likes])]
    if names[0] != names[1]:
        return likes
    return [like._replace(path=path) for like, path in zip(likes, paths, strict=True)]


def settled(choice: Any, likes: Sequence[Like]) -> Any:
    """Return a choice in which full paths are the current paths of the variables.

    This is for files without the paths of the variables, as of an optimizer that is not built.

    Raises:
        ValueError: if several variables may be meant.
    """
    if isinstance(choice, (list, tuple)):
        return [settled(part, likes) for part in choice]
    text = getattr(choice, "pattern", choice)
    path = re.sub(r"\\(.)", r"\1", text[1:-1]) if isinstance(text, str) else ""
    if not path or text != pattern_of(path) or any(like.path == path for like in likes):
        return choice
    ends = [like.path for like in likes if "/" in like.path and path.endswith("/" + like.path)]
    if not ends:
        return choice
    end = max(ends, key=len)
    if ends.count(end) > 1:
        raise ValueError(
            f"The path {path!r} chooses one variable, and the model has {ends.count(end)} with the "
            f"path {end!r} instead. The optimizer was saved before it knew its variables: load the "
            "model with `compile=False`, and compile it with an optimizer for its variables"
        )
    pattern = pattern_of(end)
    return re.compile(pattern) if isinstance(choice, re.Pattern) else pattern


def warn_unmatched(owner: str, choices: Mapping[str, Any], likes: Sequence[Like]) -> None:
    """Warn of patterns and functions that match no variable, once for each argument."""
    for name, choice in choices.items():
        unmatched = [
            shown(part)
            for part in parts_of(choice)
            # The default is for models with tables, which most models do not have.
            if part != DEFAULTS["row_variables"]
            and not any(is_chosen(like, part) for like in likes)
        ]
        if unmatched:
            near = dict.fromkeys(path for text in unmatched[:5] for path in near_paths(text, likes))
            more = f" and {len(unmatched) - 5} more" if len(unmatched) > 5 else ""
            warnings.warn(
                f"`{name}` of {owner}: no variable of the model matches "
                f"{', '.join(map(repr, unmatched[:5]))}{more}. Near names: {list(near)}",
                stacklevel=3,
            )


def near_paths(text: str, likes: Sequence[Like]) -> list[str]:
    """Return paths, or parts of paths, that are similar to a pattern; else some paths."""
    paths = list(dict.fromkeys(like.path for like in likes))
    names = dict.fromkeys([*(part for path in paths for part in path.split("/")), *paths])
    return nearest(re.sub(r"[\\^$]", "", text), names) or paths[:5]


@keras.saving.register_keras_serializable("keras_tfopt")
def no_vectors(variable: Any) -> bool:
    """Choose variables with two or more dimensions: no biases, scales or scalars.

    It only looks at the shape, so it needs no model. Biases of `keras.layers.GRU` and of attention
    have two dimensions, and so do variables of a normalization over several axes. If you have the
    model, prefer `normalization_and_bias`, which finds these, too.

    Args:
        variable: A variable, or an object with its `shape`.

    Example:

    >>> optimizer = keras_tfopt.AdamW(weight_decay=1e-4, decay_variables=keras_tfopt.no_vectors)
    """
    return len(variable.shape) > 1


def normalization_and_bias(model: Any) -> list[Any]:
    """List the variables of normalization layers, and the biases.

    LARS should skip these variables, and they should not decay. They are found by their layers, not
    by paths or shapes: a normalization layer has no layers inside, and its class, or a base class,
    has a name that ends in "Normalization" or "Norm". A bias has that name in its layer.

    Args:
        model: A `keras.Model` or layer that is built.

    Returns:
        Trainable variables. `skip_list`, `decay_variables`, `row_variables` and
        `exclude_from_weight_decay` take this list.

    Raises:
        TypeError: if `model` is neither a model nor a layer.
        ValueError: if it is not built, so that there are no variables yet.

    Example:

    >>> skipped = keras_tfopt.normalization_and_bias(model)
    >>> model.compile(optimizer=keras_tfopt.LARS(1.0, skip_list=skipped), loss="mse")
    >>> optimizer = keras_tfopt.AdamW(0.001, weight_decay=1e-4)
    >>> optimizer.exclude_from_weight_decay(keras_tfopt.normalization_and_bias(model))
    """
    check_built(model)
    normalizing = {
        id(variable)
        for layer in layers_in(model)
        if is_called(layer, NORMALIZATION) and not layers_in(layer, include_self=False)
        for variable in layer.trainable_variables
    }
    return [
        variable
        for variable in model.trainable_variables
        if id(variable) in normalizing or _BIAS.search(variable.name)
    ]


def is_called(layer: Any, pattern: re.Pattern) -> bool:
    """Return whether the name of a layer's class, or of a base class, matches a pattern."""
    return any(pattern.search(cls.__name__) for cls in type(layer).__mro__)


def check_built(model: Any) -> None:
    """Raise an error for anything but a model or layer that is built."""
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"Argument `model` must be a keras.Model or a layer. Received: {model!r}")
    if not model.built:
        raise ValueError(
            "Argument `model` must be built: give it a `keras.Input`, or call it once. "
            f"Received: {model!r}"
        )
