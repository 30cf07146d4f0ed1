"""Move variables of equal shape in one call of a rule, stacked along a new axis."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.state import write

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.step.moving import Update

# The most elements of variables that are stacked on a CPU. The matrix products of a larger variable
# use all cores by themselves, and need no copies.
MOST_ON_CPU = 1 << 16


def run_stacked(
    engine: Any, updates: list[Update], scalars: Mapping[tuple[str, int], Rates]
) -> list[Update]:
    """Move variables that are alike together; return the updates that are left.

    Variables are alike if the rule `stacks` them, their gradients are dense, and they differ only
    in their values. On a CPU, large variables are left.
    """
    found: dict[tuple, list[Update]] = collections.defaultdict(list)
    left = []
    most = math.inf if backend.has_accelerator() else MOST_ON_CPU
    for update in updates:
        is_small = math.prod(update.like.shape) <= most
        # Blocks of codes belong to one variable, so they cannot be stacked.
        is_plain = update.kind.mode == "dense" and not update.kind.stored
        if is_small and is_plain and engine.stacks(update.like):
            dtype = keras.backend.standardize_dtype(update.variable.dtype)
            found[update.kind, update.names, update.like.shape, dtype, update.rate].append(update)
        else:
            left.append(update)
    alike = {key: members for key, members in found.items() if len(members) > 1}
    left += [members[0] for members in found.values() if len(members) == 1]
    if not alike:
        return left
    groups = [(members[0].call, len(members)) for members in alike.values()]
    each = [1 + len(members[0].slots) for members in alike.values()]

    def run(values: list[Any], inputs: list[tuple]) -> tuple[None, list[tuple]]:
        writes, start = [], 0
        for (call, count), size, (grads, known) in zip(groups, each, inputs, strict=True):
            columns = [values[start + n : start + size * count : size] for n in range(size)]
            x, *slots = [ops.stack(column) for column in columns]
            x, slots = call(ops.stack(grads), x, slots, known)
            for n, new in enumerate([x, *slots]):
                parts = [] if new is None else ops.unstack(new, count)
                writes += [write(start + m * size + n, part) for m, part in enumerate(parts)]
            start += size * count
        return None, writes

    members = [update for several in alike.values() for update in several]
    variables = [v for update in members for v in (update.variable, *update.slots)]
    inputs = [
        ([update.gradient for update in several], several[0].scalars_in(scalars))
        for several in alike.values()
    ]
    key = ("stacked", tuple((key, len(several)) for key, several in alike.items()))
    backend.run_in_place(engine, key, run, variables, inputs)
    return left
