"""Run the hooks of a wrapper over whole variables, compiled in place, or over their rows."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.gradients import Incoming
from keras_tfopt.engine.hyperparameters import Scalars
from keras_tfopt.engine.moving import current_value, over_one
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state import write


def run(
    wrapper: Any,
    name: str,
    call: Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, dict]],
    incoming: Incoming,
    scalars: dict[tuple[str, int], dict[str, Any]],
    old: list[Any] | None = None,
) -> list[Any]:
    """Run a hook over the variables that it reaches, and write what it returns.

    If the rule inside keeps a variable in full precision, hooks see and change that copy.

    Args:
        wrapper: The optimizer with the hook.
        name: The name of the hook.
        call: `(hooks, g, x, s, t) -> g, x, {slot: value}`, pure.
        incoming: The gradients and their variables.
        scalars: The scalars in `t`, by the keys of entries.
        old: The values of `t.old`, for each variable.

    Returns:
        The new gradients.
    """
    given: list[tuple] = []
    facts: list[tuple] = []
    in_rows: list[tuple] = []
    whole: list[Any] = []
    reached = []
    for number, (gradient, variable, place, named) in enumerate(zip(*incoming, strict=True)):
        entry = wrapper._state.entries[place]
        if entry.reach is None:
            continue
        reached.append(number)
        g, mask, rows = _as_seen(wrapper, entry, place, gradient, named)
        owned = [variable, *entry.masters, *entry.slots.values()]
        parts: list[Any] = []
        if rows:
            parts = [backend.take(v, gradient.indices) for v in owned]
            in_rows.append((owned, gradient.indices))
        else:
            whole += owned
        given.append((g, mask, parts, None if old is None else old[number]))
        facts.append((entry.like, rows, len(entry.masters), tuple(entry.slots), place))
    if not reached:
        return incoming.grads

    def compute(values: list, inputs: tuple) -> tuple[tuple, list[tuple]]:
        new_grads, new_parts, writes = [], [], []
        given, scalars = inputs
        start = 0
        for fact, (g, mask, parts, before) in zip(facts, given, strict=True):
            like, rows, masters, names, place = fact
            first = 1 + masters
            old, *kept = parts if rows else values[start : start + first + len(names)]
            x = current = current_value(old, kept.pop(0) if masters else None, like.dtype)
            s = dict(zip(names, kept, strict=True))
            entry = wrapper._state.entries[place]
            found = scalars[entry.scalars]
            if before is not None:
                found = {**found, "old": ops.cast(before, like.dtype)}
            t = Scalars(found, entry.facts, rows, over_one(), mask)
            slots = collections.namedtuple("Slots", names)(**s)  # type: ignore[misc]
            seen_g = g if wrapper.needs_gradient else None
            new_g, x, new = call(wrapper.hooks_in(found), seen_g, x, slots, t)
            if mask is not None:
                x = ops.where(mask, x, current)
                new = {name: ops.where(mask, value, s[name]) for name, value in new.items()}
            new_grads.append(None if new_g is seen_g else new_g)
            own = {0: ops.cast(x, old.dtype)}
            if masters:
                own[1] = ops.cast(x, like.dtype)
            own.update({first + names.index(name): value for name, value in new.items()})
            if rows:
                new_parts.append(own)
                continue
            writes += [write(start + n, value) for n, value in own.items()]
            start += first + len(names)
        return (new_grads, new_parts), writes

    key = (name, tuple(facts), tuple(mask is None for _, mask, *_ in given))
    new_grads, new_parts = backend.run_in_place(wrapper, key, compute, whole, (given, scalars))
    writes = []
    for (owned, indices), own in zip(in_rows, new_parts, strict=True):
        writes += [write(owned[n], value, indices) for n, value in own.items()]
    backend.commit(writes)
    grads = list(incoming.grads)
    for number, g, (_, rows, *_) in zip(reached, new_grads, facts, strict=True):
        if g is not None:
            grads[number] = grads[number].map(lambda _, g=g: g) if rows else g
    return grads


def values_of(wrapper: Any, incoming: Incoming) -> list[Any]:
    """Return copies of the values that a hook sees: whole variables, or touched rows."""
    copies: list[Any] = []
    for gradient, variable, place, named in zip(*incoming, strict=True):
        entry = wrapper._state.entries[place]
        if entry.reach is None:
            copies.append(None)
        elif _as_seen(wrapper, entry, place, gradient, named)[2]:
            copies.append(exact_value(entry, variable, gradient.indices))
        else:
            copies.append(ops.copy(exact_value(entry, variable)))
    return copies


def exact_value(entry: Any, variable: Any, rows: Any = None) -> Any:
    """Return the value of a variable, in full precision if the rule inside keeps that.

    Args:
        entry: What the wrapper keeps for the variable.
        variable: The variable.
        rows: Indices of the rows to read; None is all.
    """
    owned = [variable, *entry.masters]
    values = [backend.read(v) if rows is None else backend.take(v, rows) for v in owned]
    return current_value(values[0], values[1] if entry.masters else None, entry.like.dtype)


def _as_seen(
    wrapper: Any, entry: Any, place: int, gradient: Any, mask: Any
) -> tuple[Any, Any, bool]:
    """Return a gradient as a hook sees it; `mask` has the rows of a sum that were named, or None.

    Returns:
        The gradient; the mask of rows that the hook may move, None for all; and whether it sees
        touched rows only.
    """
    in_parts = entry.reach == "rows"
    by_rows = in_parts and wrapper.is_of_rows(place)
    if isinstance(gradient, RowGradient):
        if in_parts and (gradient.named or by_rows):
            g = gradient.values
            return g, None if gradient.named else backend.row_mask(g), True
        return backend.to_dense(gradient), None, False
    if by_rows or (in_parts and mask is not None):
        touched = backend.row_mask(gradient)
        mask = touched if mask is None else touched | ops.reshape(mask, touched.shape)
        return gradient, mask, False
    return gradient, None, False
