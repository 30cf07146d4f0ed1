"""Set and read switches of the engine."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

in_plain: ContextVar[bool] = ContextVar("keras_tfopt_plain", default=False)
"""Whether the caller is inside of `plain()`."""


@contextlib.contextmanager
def switched(switch: ContextVar, value: Any) -> Iterator[None]:
    """Give a switch a value in this context, and restore the earlier one afterwards."""
    token = switch.set(value)
    try:
        yield
    finally:
        switch.reset(token)


_background = True


def compile_in_background(enabled: bool) -> None:
    """Set whether training continues while PyTorch compiles a rule. By default it does.

    Steps run operation by operation until the compiled code is ready. Both agree up to rounding, so
    two runs may differ in the last place. Pass False if runs must agree in all bits, or if you time
    steps: then the first step compiles and takes seconds. It also compiles first after
    `torch.use_deterministic_algorithms(True)`, and in each of several processes of
    `torch.distributed`. On the other backends this changes nothing.

    Args:
        enabled: Whether to compile in the background, in all threads from now on.

    Raises:
        TypeError: if `enabled` is not a bool.
    """
    global _background
    if not isinstance(enabled, bool):
        raise TypeError(f"Argument `enabled` must be a bool. Received: {enabled!r}")
    _background = enabled


def compiles_in_background() -> bool:
    """Return whether training continues while PyTorch compiles a rule."""
    return _background


def plain() -> contextlib.AbstractContextManager[None]:
    """Run rules operation by operation, variable by variable, without the compiled fast paths.

    Use it to debug a rule with prints and breakpoints, or to check that a fast path computes the
    same numbers. Functions that were compiled outside of this context do not change.
    """
    return switched(in_plain, True)
