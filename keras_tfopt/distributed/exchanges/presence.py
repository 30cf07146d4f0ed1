"""Agree on the variables of a step, where a gradient may be None on some workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine import RowGradient
from keras_tfopt.engine.rows import shards_of
from keras_tfopt.engine.step.gradients import Incoming, dense


def completed(
    entries: Sequence[Any], incoming: Incoming, exchange: Any, step: Callable[[], int]
) -> Incoming:
    """Return gradients of all variables that have one on any worker, in the order of places.

    Gradients that are missing here are zero, or have no rows where all others have rows. If a
    variable has rows on some workers and a dense gradient on others, its gradient is dense.

    Args:
        entries: What the optimizer keeps for each variable.
        incoming: The gradients of this worker. Those of tables that are divided stay as they are.
        exchange: The connection of the workers.
        step: Function that returns the number of steps so far, which all workers must share.
    """
    here = dict(zip(incoming.places, zip(*incoming, strict=True), strict=True))
    counts = np.zeros((3, len(entries)), "int32")  # dense gradients, rows, rows that are named
    for place, (gradient, *_) in here.items():
        is_rows = isinstance(gradient, RowGradient)
        counts[:, place] = not is_rows, is_rows, is_rows and gradient.named
    found = []
    for place, (whole, rows, named) in enumerate(exchange.count(counts, step).T):
        entry = entries[place]
        if place not in here and (not whole + rows or shards_of(entry.variable) is not None):
            continue
        gradient, *rest = here.get(place, (None, entry.variable, place, None))
        if gradient is None:
            gradient = _missing(entry.like, bool(whole), bool(named))
        elif whole and rows:
            gradient = dense(gradient)
        found.append((gradient, *rest))
    return Incoming(*map(list, zip(*found, strict=True)))


def _missing(like: Any, is_dense: bool, named: bool) -> Any:
    """Return a gradient of zeros, or of no rows."""
    if is_dense:
        return ops.zeros(like.shape, like.dtype)
    values = ops.zeros((0, *like.shape[1:]), like.dtype)
    return RowGradient.unchecked(values, ops.zeros((0,), "int64"), like.shape, named=named)
