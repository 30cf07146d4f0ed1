"""Arguments of rules for matrices: their checks, and what they say of the rule for others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import keras

from keras_tfopt.checks import check_number
from keras_tfopt.engine import DEFAULTS, as_schedule, changes, optimizer_from, short
from keras_tfopt.rule import PACKAGE, Rule

_SCALINGS = ("original", "match_rms_adamw")


def check_scaling(name: str, value: Any) -> Any:
    """Return how updates are scaled, or raise an error."""
    if isinstance(value, str) and value in _SCALINGS:
        return value
    if isinstance(value, str):
        raise ValueError(
            f"Argument `{name}` must be one of {_SCALINGS} or a number > 0. Received: {value!r}"
        )
    return check_number(name, value, 0, left_open=True)


def check_axes(name: str, value: Any) -> Any:
    """Return lists of axes by patterns, or raise an error."""
    if value is None:
        return value
    message = (
        f"Argument `{name}` must be a dictionary from regular expressions for paths of variables "
        f"to an axis >= 0 or a list of them. Received: {value!r}"
    )
    if not isinstance(value, Mapping):
        raise TypeError(message)
    checked = {}
    for pattern, axes in value.items():
        axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
        whole = [isinstance(axis, int) and not isinstance(axis, bool) for axis in axes]
        if not isinstance(pattern, str) or not axes or not all(whole):
            raise TypeError(message)
        if min(axes) < 0 or len(set(axes)) < len(axes):
            raise ValueError(message)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{message}, whose pattern has an error: {error}") from None
        checked[pattern] = axes
    return checked


def rule_named(name: str) -> Any:
    """Return the rule of this package with a name, which Keras may have, too, or None."""
    for own, cls in keras.saving.get_custom_objects().items():
        package, _, of_class = own.partition(">")
        if package == PACKAGE and short(of_class) == short(name) and issubclass(cls, Rule):
            return cls()
    return None


def check_others(name: str, value: Any) -> Any:
    """Return a rule to move other variables, a name of one, or None, or raise an error."""
    if value is None:
        return None
    value = optimizer_from(value) if isinstance(value, Mapping) else value
    value = _with_decay_as_option(name, value)
    inner = rule_named(value) if isinstance(value, str) else value
    if not isinstance(inner, Rule) or inner.scope == "model" or hasattr(inner, "others"):
        raise TypeError(
            f"Argument `{name}` must be a rule of keras_tfopt that looks at one variable at a "
            "time, or its name or configuration, or keras_tfopt.AdamW. Other wrappers go around it "
            f"all. Received: {value!r}"
        )
    options = {option: getattr(inner, option) for option in DEFAULTS if option != "weight_decay"}
    given = {n: v for n, v in options.items() if v != DEFAULTS[n]}
    if given:
        raise ValueError(
            f"Argument `{name}` must have no options but `weight_decay`: those of the rule around "
            f"hold for all variables. Give {sorted(given)} to that. Received: {value!r}"
        )
    if inner.changing_hyperparameters():
        raise ValueError(
            f"Argument `{name}` must have numbers for hyperparameters, not "
            f"{inner.changing_hyperparameters()}. Received: {value!r}"
        )
    return value


def _with_decay_as_option(name: str, value: Any) -> Any:
    """Return the rule inside a wrapper that decays weights, with the decay as its option."""
    if not hasattr(value, "scale_by_learning_rate"):
        return value
    rule, config = value.inner_optimizer, value.get_config()
    chosen = config.get("decay_variables") is not None or "no_weight_decay" in config
    if not value.scale_by_learning_rate or chosen or not isinstance(rule, Rule):
        raise ValueError(
            f"Argument `{name}` must decay as options of rules do: by the learning rate times "
            "`weight_decay`, with `exclude_from_weight_decay` of the optimizer around. Write "
            "others=keras_tfopt.AdamW(..., scale_by_learning_rate=True). Received: "
            f"{value!r}"
        )
    return type(rule).from_config({**rule.get_config(), "weight_decay": value.weight_decay})


def scaled_factor(factor: Any, by: float) -> Any:
    """Return a factor of the learning rate, a number or a schedule, times a number."""
    if isinstance(factor, (int, float)):
        return factor * by
    return factor if by == 1 else _Scaled(factor, by)


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, schedule: Any, by: float):
        self.schedule, self.by = as_schedule(schedule), by

    def __call__(self, step: Any) -> Any:
        return self.by * self.schedule(step)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Scaled):
            return False
        return (self.schedule, self.by) == (other.schedule, other.by)

    def __hash__(self) -> int:
        return hash((id(self.schedule), self.by))


def ratio(own: Any, inner: Any) -> float:
    """Return the learning rate of `others` as a multiple of the common one, or raise an error."""
    if changes(own) or changes(inner) or (own == 0 and inner != 0):
        raise ValueError(
            "Argument `others_factor` must say how large the learning rate of `others` is, as "
            "a multiple of the common one, unless both are numbers > 0. Received: "
            f"others_factor=None, learning_rate={own!r}, and {inner!r} of others"
        )
    return 1.0 if own == inner else inner / own
