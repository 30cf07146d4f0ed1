"""What formulas and hooks see as `t`: scalars, facts, and functions of a whole variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from keras import ops

from keras_tfopt.engine.state import DITHER, HYPERPARAMETER


class Over(NamedTuple):
    """Functions of values of a variable's shape, or of several variables end to end.

    Attributes:
        norm: The Euclidean norm of each variable, to broadcast against the values.
        sum: The sum over each variable.
        mean: The mean of each variable.
    """

    norm: Callable[[Any], Any]
    sum: Callable[[Any], Any]
    mean: Callable[[Any], Any]


def mean(values: Any) -> Any:
    # On JAX, `ops.mean` rounds to float32.
    return ops.sum(values) / max(math.prod(values.shape), 1)


def sums_of(call: Callable[..., Any], over: Over, g: Any, x: Any, *others: Any) -> list[Any]:
    """Return the norms, sums and means that a call asks for, in the order in which it asks.

    If all are of g and x themselves, return none: there is nothing to compute on the way.
    """
    found: list[Any] = []
    computed = False

    def noted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            nonlocal computed
            computed |= values is not g and values is not x
            found.append(function(values))
            return found[-1]

        return run

    call(g, x, *others, over=Over(*map(noted, over)))
    return found if computed else []


def known_over(sums: Iterable[Any]) -> Over:
    """Return functions for one call that asks for the sums of `sums_of` again."""
    left = iter(sums)

    def take(values: Any) -> Any:
        return next(left)

    return Over(take, take, take)


def _refuse(name: str) -> Callable[[Any], Any]:
    def refuse(values: Any) -> Any:
        raise TypeError(
            f"`t.{name}` is of a whole variable: a rule that uses it must have the class attribute "
            '`scope = "variable"`. Received: "element"'
        )

    return refuse


REFUSED = Over(_refuse("norm"), _refuse("sum"), _refuse("mean"))
"""For formulas of elements, which may see any piece of a variable."""


class Scalars:
    """What rules see as `t`: scalars and facts by name, `rows`, `touched`, functions of `Over`."""

    def __getattr__(self, name: str) -> Any:  # called only if there is no such attribute
        raise AttributeError(
            f"`t` has no {name!r}: `scalars` or `facts` of the rule must return it. It has "
            f"{sorted(n for n in vars(self) if not n.startswith('_'))}"
        )

    def __init__(
        self,
        scalars: dict[str, Any],
        facts: dict[str, Any],
        rows: bool,
        over: Over,
        touched: Any = None,
    ):
        for name, value in {**scalars, **facts}.items():
            if not name.startswith((HYPERPARAMETER, DITHER)):
                setattr(self, name, value)
        self.rows = rows
        self.touched = touched
        self._over = over
        self.norm, self.sum, self.mean = over

    def below(self, prefix: str) -> Scalars:
        """Return the scalars of a rule inside, whose names have `prefix` here."""
        known = vars(self).items()
        own = {n.removeprefix(prefix): value for n, value in known if n.startswith(prefix)}
        return Scalars({"step": self.step, **own}, {}, self.rows, self._over, self.touched)
