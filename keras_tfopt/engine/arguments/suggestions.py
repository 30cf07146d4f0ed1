"""Find names similar to an unknown one, and suggest them in errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

CLOSE = 0.6  # the smallest similarity of a suggestion
_SHORT_FOR = {"lr": "learning_rate", "wd": "weight_decay", "eps": "epsilon"}


def short(name: str) -> str:
    """Return a name of an optimizer in a form that is the same for all spellings."""
    return re.sub(r"[_\-\s]", "", name.lower()).removesuffix("optimizer")


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that are most similar to this one, the best first."""
    likeness = {other: _likeness(name, other) for other in known}
    best = sorted(likeness, key=likeness.__getitem__, reverse=True)  # keeps the order of equals
    return [other for other in best if likeness[other] >= CLOSE][:count]


def _likeness(name: str, other: str) -> float:
    """Return the similarity of two names, at most 1.

    Initials are similar to the words they stand for, and a word to a name that contains it.
    """
    name = "_".join(_SHORT_FOR.get(word, word) for word in name.lower().split("_"))
    key, target = short(name), short(other)
    words = re.split(r"[_.\s]", other.lower())
    if key == target:
        return 1.0
    if key == "".join(word[:1] for word in words):
        return 0.95
    spelled = difflib.SequenceMatcher(None, key, target).ratio()
    if key in words:
        return max(spelled, 0.9)
    if len(key) > 2 and target.startswith(key):
        return max(spelled, 0.8)
    return spelled


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: similar names, or all names."""
    known = list(known)
    found = nearest(name, known)
    best = [other for other in found if _likeness(name, other) > _likeness(name, found[0]) - 0.05]
    if best:
        return f"Did you mean {' or '.join(map(repr, best))}?"
    return f"There are: {', '.join(known)}." if known else "There are none."


def check_arguments(owner: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise an error for the first argument that a constructor does not have."""
    known = list(known)
    for name, value in given.items():
        if name not in known:
            raise TypeError(
                f"{owner} has no argument {name!r}. {did_you_mean(name, known)} "
                f"Received: {name}={value!r}"
            )


def nested(text: str) -> list[str]:
    """Return the names in "outer(inner)", from the outside in; none if a parenthesis is open."""
    opened = text.rstrip(")")
    names = [name.strip() for name in opened.split("(")]
    return names if len(text) - len(opened) == len(names) - 1 else []
