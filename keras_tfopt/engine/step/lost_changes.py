"""Warn where changes of variables are lost, as an optimizer computes these from its state alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.state.building import path_of


def warn_of_lost_changes(optimizer: Any, variables: Sequence[Any]) -> None:
    """Warn of hooks around, and limits of variables in, an optimizer that `ignores_changes`.

    Args:
        optimizer: An optimizer of ours, built; those inside of it have warned for themselves.
        variables: Its variables.
    """
    name = type(optimizer).__name__
    if optimizer.changes_variables:
        for part in parts(optimizer.inner_optimizer):
            if getattr(part, "ignores_changes", False):
                inside = type(part).__name__
                warnings.warn(
                    f"{name} changes variables, which {inside} inside of it computes from its "
                    f"slots in each step: the changes are lost. Put {name} around another "
                    "optimizer; keras_tfopt.ScheduleFree may be around both",
                    stacklevel=4,
                )
        return
    # Inside of a wrapper, constraints act on what is averaged.
    is_rule = not hasattr(optimizer, "inner_optimizer")
    if is_rule and optimizer.keeps_averages():
        limited = [path_of(v) for v in variables if v.constraint is not None]
        if limited or getattr(optimizer, "bounds_norms", False):
            which = f"a constraint of {limited[0]!r}" if limited else "`max_norm` in groups"
            warnings.warn(
                f"The averages that {name} keeps do not obey constraints of layers and `max_norm`, "
                "which only the variables obey. Those of keras_tfopt.ScheduleFree around another "
                f"optimizer do. Received: {which}",
                stacklevel=4,
            )
