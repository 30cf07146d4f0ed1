"""Name the line of a user's code in errors."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from keras_tfopt.engine.backends.select import backend

RAISED_AGAIN = (
    *(AssertionError, AttributeError, IndexError, KeyError, NameError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError, ZeroDivisionError),
)
"""Errors that can be raised again with another message."""


@contextlib.contextmanager
def defined(rule: Any, method: str) -> Iterator[str]:
    """Give the name of a method, and add the line of its definition to errors."""
    name = f"{type(rule).__name__}.{method}"
    try:
        yield name
    except (KeyError, TypeError, ValueError) as error:
        where = _definition(rule, method)
        if where is None:
            raise
        raise type(error)(f"{error.args[0]}. {name} is defined in {where}") from error


def _definition(rule: Any, method: str) -> str | None:
    """Return the file and line in which a method is defined, or None if it has no code."""
    code = getattr(inspect.unwrap(getattr(type(rule), method)), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


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
        if "item assignment" in str(error):
            raise TypeError(
                f"{name} must not change tensors in place: use `keras.ops.where`, or "
                f"`keras.ops.slice_update`. {where}"
            ) from error
        if backend.asks_for_value(error):
            raise TypeError(
                f"{name} asks for the value of a tensor, as `if`, `while`, `bool`, `float` and "
                "NumPy do. Compiled steps have no values yet: use operations of `keras.ops`, "
                "`ops.where(condition, a, b)` instead of `if`, and instead of a loop that ends by "
                f"a condition `for i in range(n)`, where n is an argument. {where}"
            ) from error
        if type(error) not in RAISED_AGAIN:
            raise
        said = f"{name}: {error.args[0] if error.args else ''}"
        if lines:
            raise type(error)(f"{said} {where}") from error
        if isinstance(error, TypeError) and "positional argument" in said:
            base = next(c for c in cls.__mro__ if c not in users and method in vars(c))
            arguments = ", ".join(inspect.signature(vars(base)[method]).parameters)
            raise TypeError(
                f"{said}. It is defined in {_definition(rule, method)}, and has to be "
                f"`def {method}({arguments})`"
            ) from error
        raise
