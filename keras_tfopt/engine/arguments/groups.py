"""Parameter groups: check an optimizer's settings for some variables, and choose the variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_tfopt.engine.arguments.options import (
    as_schedule,
    check_finite,
    check_savable,
    own_parameters,
    takes,
)
from keras_tfopt.engine.arguments.selection import is_chosen, near_paths, pattern_of, settled, shown
from keras_tfopt.engine.arguments.slot_dtype import OPTION, check_scope, check_slot_dtype
from keras_tfopt.engine.arguments.suggestions import did_you_mean
from keras_tfopt.engine.state.state import Like, Settings

BASE = ("learning_rate_factor", "weight_decay", "frozen", "max_norm", "clip_unitwise", OPTION)
"""Settings that every rule has. The others are its own hyperparameters."""
_NOT_BY_GROUP = ("learning_rate", "global_step", "name")
_SEVERAL_PATHS = re.compile(r"\^\((\?:)?(.*)\)\$")


# ---- Checks ------------------------------------------------------------------------------------


def parts_of(groups: Any) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield patterns with their settings, and functions with None."""
    for part in groups if isinstance(groups, (list, tuple)) else [groups]:
        if isinstance(part, Mapping):
            yield from part.items()
        elif part is not None:
            yield part, None


def check_form(groups: Any) -> Any:
    """Return the argument `groups` as a copy, or raise an error if it has another form."""
    if isinstance(groups, (list, tuple)):
        if any(isinstance(part, (list, tuple)) for part in groups):
            raise _of_form(groups)
        return [check_form(part) for part in groups]
    if groups is None or callable(groups) and takes(groups, None):
        return groups
    if not isinstance(groups, Mapping):
        raise _of_form(groups)
    for key, settings in groups.items():
        if not isinstance(key, (str, re.Pattern)) or not isinstance(settings, Mapping):
            raise _of_form(groups)
        if key in ("", re.compile("")):
            raise ValueError(
                f'Argument `groups` must have no empty pattern: "." matches all variables. '
                f"Received: {{{key!r}: {settings!r}}}"
            )
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(
                f"Argument `groups` must have regular expressions ({error}). Received: {key!r}"
            ) from None
    return {_as_text(key): dict(settings) for key, settings in groups.items()}


def _as_text(key: Any) -> str:
    """Return a pattern as a string with its flags inside, which JSON can hold."""
    if isinstance(key, str):
        return key
    flags = "".join(letter for letter in "imsx" if key.flags & getattr(re, letter.upper()))
    return f"(?{flags}){key.pattern}" if flags else key.pattern


def _of_form(groups: Any) -> TypeError:
    return TypeError(
        "Argument `groups` must be a dictionary from regular expressions for paths of variables "
        "to dictionaries of settings, a function of a variable that returns such settings, or a "
        f"list of these. Received: {groups!r}"
    )


def check_all(optimizer: Any, groups: Any) -> Any:
    """Return groups of the right form with checked settings, or raise an error."""
    if isinstance(groups, list):
        return [check_all(optimizer, part) for part in groups]
    if not isinstance(groups, Mapping):
        return groups
    return {key: check_settings(optimizer, key, settings) for key, settings in groups.items()}


def check_settings(optimizer: Any, key: Any, settings: Any) -> dict[str, Any]:
    """Return settings with checked values, or raise an error that names the group."""
    where = f"Argument `groups`, {shown(key)!r}"
    if not isinstance(settings, Mapping):
        raise TypeError(f"{where}: settings must be a dictionary or None. Received: {settings!r}")
    checked = {}
    for name, value in settings.items():
        try:
            checked[name] = _checked(optimizer, name, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None
    if checked.get("frozen") and len(checked) > 1:
        raise ValueError(
            f"{where}: variables that are frozen take no steps, so there must be no other "
            f"settings than `frozen`. Received: {settings!r}"
        )
    return checked


def _checked(optimizer: Any, name: str, value: Any) -> Any:
    own = [n for n in own_parameters(type(optimizer)) if n not in _NOT_BY_GROUP]
    if name in own:
        if optimizer.scope == "model":
            raise ValueError(
                f"`{name}` of {type(optimizer).__name__} belongs to all variables together: the "
                f"rule sees them at once. Received: {name}={value!r}"
            )
        field = getattr(type(optimizer), "_fields", {}).get(name)
        value = value if field is None else field.check(name, value)
        check_savable(name, value)
        return value
    if name not in BASE:
        hint = "the common learning rate has a factor: `learning_rate_factor`. "
        raise ValueError(
            f"{type(optimizer).__name__} has no setting {name!r} of groups"
            + (f"; {hint}" if name == "learning_rate" else ". ")
            + f"{did_you_mean(str(name), [*BASE, *own])} Received: {name}={value!r}"
        )
    if name == "frozen":
        if not isinstance(value, bool):
            raise TypeError(f"`frozen` must be True or False. Received: {value!r}")
        return value
    if name == OPTION:
        check_scope(optimizer, check_slot_dtype(value))
        return check_slot_dtype(value)
    if name in ("max_norm", "clip_unitwise"):
        text = f"`{name}` must be a finite number > 0"
        return None if value is None else check_finite(text, value, positive=True)
    value = as_schedule(value)
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        check_savable(name, value)
        return value
    text = f"`{name}` must be a finite number >= 0 or a schedule"
    return check_finite(text, value, positive=False)


def variables_in(groups: Any) -> list[tuple[str, Any]]:
    """Return hyperparameters that are variables, with their names."""
    return [
        (name, value)
        for _, settings in parts_of(groups)
        for name, value in (settings or {}).items()
        if isinstance(value, keras.Variable)
    ]


# ---- Variables ---------------------------------------------------------------------------------


def settings_of(optimizer: Any, groups: Any, like: Like) -> Settings:
    """Return the settings of a variable in the groups, or raise an error if groups disagree."""
    names: list[str] = []
    given: dict[str, Any] = {}
    freezing: dict[bool, str] = {}
    for key, settings in parts_of(groups):
        if settings is None:
            found = key(like)
            settings = None if found is None else check_settings(optimizer, key, found)
        elif not is_chosen(like, key):
            continue
        if settings is None:
            continue
        names.append(shown(key))
        given.update(settings)
        if "frozen" in settings:
            freezing[settings["frozen"]] = shown(key)
    if len(freezing) > 1:
        raise ValueError(
            f"Argument `groups`: {like.path!r} must not be in a group with `frozen: True` and in "
            f"one with `frozen: False`. Received: {freezing[True]!r} and {freezing[False]!r}"
        )
    own = {name: value for name, value in given.items() if name not in BASE}
    if optimizer._own_weight_decay and "weight_decay" in given:
        own["weight_decay"] = given["weight_decay"]
    return Settings(tuple(names), given, own)


def check_matches(groups: Any, likes: Sequence[Like]) -> None:
    """Raise an error for a pattern that matches no variable."""
    for key, settings in parts_of(groups):
        if settings is not None and not any(is_chosen(like, key) for like in likes):
            near = near_paths(key, likes)
            paths = [like.path for like in likes if any(name in like.path for name in near)]
            first = {like.path.split("/")[0] for like in likes}
            hint = f" All paths begin with {first.pop() + '/'!r}." if len(first) == 1 else ""
            raise ValueError(
                f"Argument `groups` must have patterns that match variables. Received: {key!r}, "
                f"which matches none.{hint if key.startswith('^') else ''} "
                f"Near paths: {paths[:10]}"
            )


def settled_groups(groups: Any, likes: Sequence[Like]) -> Any:
    """Return groups in which full paths are those that the variables have now."""
    if isinstance(groups, (list, tuple)):
        return [settled_groups(part, likes) for part in groups]
    if not isinstance(groups, Mapping):
        return groups
    return {_settled_key(key, likes): settings for key, settings in groups.items()}


def _settled_key(key: str, likes: Sequence[Like]) -> str:
    several = _SEVERAL_PATHS.fullmatch(key)
    if several is None:
        return settled(key, likes)
    opening, patterns = several.groups()
    patterns = [settled(f"^{pattern}$", likes)[1:-1] for pattern in patterns.split("|")]
    return f"^({opening or ''}{'|'.join(patterns)})$"


def several_paths(paths: Sequence[str], capturing: bool = True) -> str:
    """Return the regular expression that matches exactly these paths."""
    return f"^({'' if capturing else '?:'}{'|'.join(pattern_of(p)[1:-1] for p in paths)})$"
