"""Name the line of a user's code in errors."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from keras_tfopt.engine.backends.select import backend

RAISED_AGAIN = (
    *(AttributeError, IndexError, KeyError, NameError, RuntimeError),
    *(TypeError, ValueError, ZeroDivisionError),
)
"""Errors that can be raised again with another message."""


@contextlib.contextmanager
def defined(rule: Any, method: str) -> Iterator[str]:
    """Give the name of a method, and add the line of its definition to errors."""
    name = f"{type(rule).__name__}.{method}"
    try:
        yield name
    except (KeyError, TypeError, ValueError) as error:
        code = getattr(inspect.unwrap(getattr(type(rule), method)), "__code__", None)
        if code is None:
            raise
        where = f"{code.co_filename}:{code.co_firstlineno}"
        raise type(error)(f"{error.args[0]}. {name} is defined in {where}") from error


@contextlib.contextmanager
def located(rule: Any, method: str) -> Iterator[None]:
    """Add to an error the line of the rule that raised it, and what to write instead."""
    try:
        yield
    except Exception as error:
        cls = type(rule)
        parts = ("builtins", "keras", "keras_tfopt")
        users = [c for c in cls.__mro__ if c.__module__.split(".")[0] not in parts]
        files = {inspect.getsourcefile(c) for c in users}
        lines = [f for f in traceback.extract_tb(error.__traceback__)[1:] if f.filename in files]
        where = f"{lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}" if lines else ""
        name = f"{cls.__name__}.{method}"
        if backend.asks_for_value(error):
            raise TypeError(
                f"{name} asks for the value of a tensor, as `if`, `while`, `bool`, `float` and "
                "NumPy do. Compiled steps have no values yet: use operations of `keras.ops`, "
                "`ops.where(condition, a, b)` instead of `if`, and instead of a loop that ends by "
                f"a condition `for i in range(n)`, where n is an argument. {where}"
            ) from error
        if lines and type(error) in RAISED_AGAIN:
            raise type(error)(f"{name}: {error.args[0] if error.args else ''} {where}") from error
        raise
