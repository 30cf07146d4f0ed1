"""The update of one variable, which `moving.py` makes and a backend runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tfopt.engine.arguments.hyperparameters import Rates
from keras_tfopt.engine.state.state import Like, Stored, write


@dataclasses.dataclass(frozen=True)
class Kind:
    """All static facts about one call of a rule. Calls of equal kinds can share compiled code."""

    mode: str  # "dense", "rows", "move_rows" or "touched", rows of a dense gradient that are not 0
    dtype: str  # of the arithmetic
    scope: str  # of the rule for this variable
    decays: bool  # whether the base's decoupled weight decay applies
    rule: int = 0  # the index of the hyperparameters, among those that groups make
    named: bool = False  # whether rows count as touched even if their gradient is zero
    facts: tuple[tuple[str, Any], ...] = ()  # of the variable, for `t`
    stored: tuple[Stored, ...] = ()  # how slots are kept in fewer bytes
    flat: bool = False  # whether it can run over many variables that lie end to end
    around: tuple = ()  # the keys of hooks that run in the same call


@dataclasses.dataclass(slots=True)
class Update:
    """One variable with its slots, its gradient, and the rule to call with them."""

    kind: Kind
    index: int  # the place of the variable
    like: Like
    names: tuple[str, ...]  # of the slots
    slots: list[Any]
    cut: tuple[bool, ...]  # for variable and slots: whether row updates see only touched rows
    call: Callable[..., tuple[Any, list[Any]]]  # the rule, from `bind_rule`
    variable: Any
    gradient: Any  # a tensor or, in mode "rows", a RowGradient of distinct rows
    # In mode "move_rows", the rows that may move; in mode "touched", the rows that count as touched
    # even if their gradient is zero. Otherwise None.
    mask: Any = None
    rate: int = 0  # the index of the learning rate, among those that groups make

    def scalars_in(self, scalars: Mapping[tuple[str, int], Rates]) -> dict[str, Any]:
        """Return the scalars of this variable, from those of a step."""
        rates = scalars[self.kind.dtype, self.kind.rule]
        return rates.each[self.rate] if rates.count > 1 else rates.together

    def writes(self, new: list[Any], rows: list[Any] | None = None) -> list[tuple[Any, Any, Any]]:
        """Return the writes for new values of variable and slots, of which None are unchanged."""
        variables = [self.variable, *self.slots]
        rows = rows or [None] * len(new)
        return [
            write(v, n, i) for v, n, i in zip(variables, new, rows, strict=True) if n is not None
        ]


def rounds(updates: Sequence[Update]) -> list[list[Update]]:
    """Return lists of the updates, in order, with one update at most of each variable in a list."""
    found: list[dict[int, Update]] = []
    for update in updates:
        key = id(update.variable)
        if all(key in one for one in found):
            found.append({})
        next(one for one in found if key not in one)[key] = update
    return [list(one.values()) for one in found]
