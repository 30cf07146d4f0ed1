"""Compiled code that several optimizers share, and the keys by which it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


class Shared(dict[tuple, Any]):
    """What optimizers have in common, as compiled functions.

    Those share it that are of one class of this package and have equal hyperparameters. Users
    change classes of their own, and what these call, as in a notebook. So each optimizer of such a
    class has code of its own.

    Of more than `LIMIT`, those stay that optimizers asked for last.
    """

    LIMIT = 256

    def find(
        self,
        engine: Any,
        rule: Any,
        changing: tuple[str, ...],
        key: tuple,
        make: Callable[[], Any],
    ) -> Any:
        """Return what belongs to an optimizer and a key, which is made if it is not there.

        Compiled code keeps `rule` alive, and with it all objects whose identity is in the key.

        Args:
            engine: The optimizer.
            rule: The `self` of formulas.
            changing: The names of its attributes that are among the scalars of each step.
            key: What else the code depends on.
            make: Function that makes it.
        """
        values = {n: v for n, v in vars(rule).items() if n not in (*changing, "_arguments")}
        key = type(engine), identity(values), changing, keras.config.floatx(), *key
        if not is_ours(type(engine)):
            if key not in engine._fast:
                engine._fast[key] = make()
            return engine._fast[key]
        found = self.pop(key, None) or make()
        self[key] = found  # as the last one
        if len(self) > self.LIMIT:
            del self[next(iter(self))]
        return found


def code_of(wrapper: Any) -> Any:
    """Return what stands for the code of hooks in keys: their class, unless it is a user's."""
    return type(wrapper) if is_ours(type(wrapper)) else wrapper._own_code


def is_ours(value: Any) -> bool:
    """Return whether a class or function is from this package."""
    return value.__module__.startswith("keras_tfopt.")


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
