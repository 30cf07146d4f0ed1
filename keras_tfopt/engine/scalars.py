"""What formulas and hooks see as `t`: the scalars of a step, and what is of a whole variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_tfopt.engine.state import HYPERPARAMETER


class Over(NamedTuple):
    """Functions of values of a variable's shape, which may be one of several end to end.

    Attributes:
        norm: The Euclidean norm of each variable, to broadcast against the values.
        mean: The mean of each.
    """

    norm: Callable[[Any], Any]
    mean: Callable[[Any], Any]


def mean(values: Any) -> Any:
    # On JAX, `ops.mean` rounds to float32.
    return ops.sum(values) / max(math.prod(values.shape), 1)


def _refuse(name: str) -> Callable[[Any], Any]:
    def refuse(values: Any) -> Any:
        raise TypeError(
            f"`t.{name}` is of a whole variable: a rule that uses it must have the class attribute "
            '`scope = "variable"`. Received: "element"'
        )

    return refuse


REFUSED = Over(_refuse("norm"), _refuse("mean"))
"""For formulas of elements, which may see any piece of a variable."""


class Scalars:
    """What rules see as `t`: scalars and a variable's facts by name, `rows`, `touched`, `norm`."""

    def __getattr__(self, name: str) -> Any:  # only where there is nothing of this name
        raise AttributeError(
            f"`t` has no {name!r}: `scalars` or `facts` of the rule must return it. It has "
            f"{sorted(self._names)}"
        )

    def __init__(
        self,
        scalars: dict[str, Any],
        facts: dict[str, Any],
        rows: bool,
        over: Over,
        touched: Any = None,
    ):
        names = ["rows", "touched", "norm", "mean"]
        for name, value in {**scalars, **facts}.items():
            if not name.startswith(HYPERPARAMETER):
                setattr(self, name, value)
                names.append(name)
        # No `vars(self)` in the message above, which Dynamo of PyTorch 2.8 does not know.
        self._names = names
        self.rows = rows
        self.touched = touched
        self._over = over
        self.norm, self.mean = over

    def below(self, prefix: str) -> Scalars:
        """Return the same for a rule inside, of whose names `prefix` has to be taken away."""
        names = [name for name in self._names if name.startswith(prefix)]
        own = {name.removeprefix(prefix): getattr(self, name) for name in names}
        return Scalars({"step": self.step, **own}, {}, self.rows, self._over, self.touched)
