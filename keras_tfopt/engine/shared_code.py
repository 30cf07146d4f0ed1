"""Compiled code that several optimizers share, and the keys by which they find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def sharing_key(engine: Any, rule: Any, changing: tuple[str, ...]) -> tuple:
    """Return a key that is equal for optimizers that can share compiled code.

    These are of one class of this package with equal hyperparameters. `rule` is the `self` of
    formulas. Compiled code keeps it alive, and with it all objects whose identity is in the key.
    """
    values = {n: v for n, v in vars(rule).items() if n not in (*changing, "_arguments")}
    return code_of(engine), identity(values), changing, keras.config.floatx()


def code_of(optimizer: Any) -> Any:
    """Return what stands for the code of formulas or hooks in keys.

    Users change classes of their own, and what these call, as in a notebook. So each optimizer of
    such a class is compiled anew.
    """
    cls = type(optimizer)
    return cls if cls.__module__.startswith("keras_tfopt.") else optimizer._own_code


class Shared(dict[tuple, Any]):
    """What optimizers have in common, as compiled functions, by `sharing_key` and more.

    Of more than `LIMIT`, those stay that optimizers asked for last.
    """

    LIMIT = 256

    def find(self, key: tuple, make: Callable[[], Any]) -> Any:
        """Return what belongs to a key, which is made if it is not there."""
        found = self.pop(key, None) or make()
        self[key] = found  # as the last one
        if len(self) > self.LIMIT:
            del self[next(iter(self))]
        return found


def identity(value: Any) -> Any:
    """Return a key that is equal for equal numbers, strings and collections of these.

    For other objects it is their identity.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), repr(value)  # in which -0.0 and 0.0 differ
    if isinstance(value, (list, tuple)):
        return type(value), *map(identity, value)
    if isinstance(value, dict):
        return dict, *((name, identity(one)) for name, one in sorted(value.items()))
    return id(value)
