"""What calls of a rule have in common, if compiled code can serve all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tfopt.engine.state.state import Stored


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
