"""Switches of the engine."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

in_plain: ContextVar[bool] = ContextVar("keras_tfopt_plain", default=False)
"""Whether the caller is inside of `plain()`."""


@contextlib.contextmanager
def switched(switch: ContextVar, value: Any) -> Iterator[None]:
    """Give a switch a value in this context, and its earlier one afterwards."""
    token = switch.set(value)
    try:
        yield
    finally:
        switch.reset(token)


def plain() -> contextlib.AbstractContextManager[None]:
    """Run rules operation by operation, variable by variable, without the compiled fast paths.

    For debugging a rule with prints and breakpoints, and for checking that a fast path computes the
    same numbers. Functions that were compiled outside of this context stay as they are.
    """
    return switched(in_plain, True)
