"""Choosing variables by their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def check_skip_list(name: str, patterns: Any) -> list[str | re.Pattern] | None:
    """Returns the list, or raises an error that names the argument."""
    if patterns is None:
        return None
    if isinstance(patterns, (str, re.Pattern)) or not isinstance(patterns, Sequence):
        raise TypeError(
            f"Argument `{name}` must be None or a list of strings or compiled regular expressions. "
            f"Received: {patterns!r}"
        )
    for pattern in patterns:
        if not isinstance(pattern, (str, re.Pattern)):
            raise TypeError(
                f"Argument `{name}` must hold strings or compiled regular expressions. "
                f"Received: {pattern!r}"
            )
    return list(patterns)


def is_skipped(path: str, patterns: Sequence[str | re.Pattern] | None) -> bool:
    """Whether a string of `patterns` is part of the path or an expression is found in it.

    Names of TensorFlow end with `:0`, which paths do not have.
    """
    return any(
        pattern in path or (":" in pattern and pattern in f"{path}:0")
        if isinstance(pattern, str)
        else bool(pattern.search(path))
        for pattern in patterns or ()
    )
