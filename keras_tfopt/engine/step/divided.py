"""Check which optimizers can move tables that are divided by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.rows import shards_of
from keras_tfopt.engine.state.building import path_of
from keras_tfopt.engine.state.state import Like

# Options that need a norm over rows of all workers. Only the norm over all variables is exchanged.
NORMS = ("clipnorm", "clip_unitwise")


def check_divided(
    optimizer: Any, variables: Sequence[Any], likes: Sequence[Like], together: bool = False
) -> None:
    """Raise an error if an optimizer needs all rows of a table that is divided.

    With `together`, the workers exchange gradients and variables.
    """
    for variable, like in zip(variables, likes, strict=True):
        shards = shards_of(variable)
        for part in parts(optimizer) if shards is not None else ():
            problem = _problem(part, like)
            if problem is None and shards.between_workers:
                problem = _between(part, together)
                # Groups of an optimizer inside are checked when that is built.
                if problem is None and part is optimizer:
                    problem = _between_by_groups(part, like)
            if problem:
                raise ValueError(
                    f"The table {path_of(variable)!r} has shard='rows', and {type(part).__name__} "
                    f"{problem}"
                )


def _problem(part: Any, like: Like) -> str | None:
    if not getattr(part, "is_engine", False):
        return (
            "needs its dense gradient: use an optimizer of keras_tfopt, see keras_tfopt.from_keras"
        )
    if hasattr(part, "inner_optimizer"):
        return None
    if part.scope == "model" or part.sparse != "rows" or not part.takes_rows(like):
        return (
            "needs its dense gradient: use a rule whose row gradients touch rows only, such as "
            "LazyAdam, Adagrad or Ftrl"
        )
    return None


def _between(part: Any, together: bool) -> str | None:
    """Return why the rows cannot be on several workers; None if they can."""
    if hasattr(part, "inner_optimizer"):
        if part.rows_alone or getattr(part, "divides_tables", False):
            return None
        return "is a wrapper that may look at all rows: put none around the rule, or MovingAverage"
    if part.shards is None and not together:
        return (
            "exchanges nothing between workers: write "
            f"keras_tfopt.distributed.ShardedState({type(part).__name__}(...))"
        )
    if part.scope != "element" and not part.rows_alone:
        return "looks at several rows together, which may be on other workers"
    for option in NORMS:
        if getattr(part, option) is not None:
            return (
                f"has {option}={getattr(part, option)!r}, a norm over rows of other workers, too: "
                "use `global_clipnorm`"
            )
    return None


def _between_by_groups(part: Any, like: Like) -> str | None:
    """Return why the table's `groups` keep its rows from being on several workers, or None."""
    given = {} if hasattr(part, "inner_optimizer") else part.settings_of(like).given
    for option in ("clip_unitwise", "max_norm"):
        if given.get(option) is not None:
            return (
                f"has {option}={given[option]!r} for it in `groups`, a norm over rows of other "
                "workers, too: leave it out there"
            )
    if "int8" in str(given.get("slot_dtype")):
        return "has slot_dtype='int8' for it in `groups`: use 'bfloat16' there"
    return None


def refuse_divided(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise an error for a divided table if all workers must have the same variables."""
    for variable in variables:
        if shards_of(variable) is not None:
            raise ValueError(
                f"The table {path_of(variable)!r} has shard='rows', and {type(optimizer).__name__} "
                "makes variables equal on all workers: use keras_tfopt.distributed.ShardedState"
            )
