"""Switches of the engine."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_plain: ContextVar[bool] = ContextVar("keras_tfopt_plain", default=False)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Run rules operation by operation, variable by variable, without the compiled fast paths.

    For debugging a rule with prints and breakpoints, and for checking that a fast path computes the
    same numbers. Functions that were compiled outside of this context stay as they are.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def is_plain() -> bool:
    """Whether the caller is inside `plain()`."""
    return _plain.get()
