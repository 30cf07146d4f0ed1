"""Run the hooks of a wrapper over whole variables, compiled in place, or over their rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import Known, Scalars
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.state import Entry, slots_type, write
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.moving import OVER_ONE, current_value
from keras_tfopt.engine.step.shared_code import identity

HOOKS = ("accept_step", "before_step", "before", "accept", "after", "after_step")
"""The methods of a wrapper that users write and a step calls, in the order of a step."""


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
    reached = _reached(wrapper, incoming, old)
    if not reached:
        return incoming.grads
    seen = tuple([one.seen for one in reached])
    parts = [one.parts() for one in reached]
    taken = [[backend.take(v, rows) for v, rows in own] for own in parts]
    given = [(*one.given, own) for one, own in zip(reached, taken, strict=True)]
    whole = [v for one in reached for v in one.whole()]

    def compute(values: list, inputs: tuple) -> tuple[tuple, list[tuple]]:
        given, scalars = inputs
        left = iter(values)
        tensors = []
        for one, (*others, parts) in zip(seen, given, strict=True):
            cut = iter(parts)
            tensors.append((*others, *[next(cut if is_cut else left) for is_cut in one.cut]))

        def of(one: Seen) -> Callable[..., list[Any]]:
            return functools.partial(_call, wrapper, call, one, scalars[one.scalars])

        found = backend.map_alike(wrapper, name, of, seen, tensors)
        is_cut = [is_cut for one in seen for is_cut in one.cut]
        each = list(zip(is_cut, [x for _, *own in found for x in own], strict=True))
        new_parts = [x for is_cut, x in each if is_cut]
        new_whole = [x for is_cut, x in each if not is_cut]
        writes = [write(n, x) for n, x in enumerate(new_whole) if x is not None]
        return ([new_g for new_g, *_ in found], new_parts), writes

    alike = [(incoming.places[one.number], one.given[1] is not None) for one in reached]
    key = (name, seen, tuple(alike))
    new_grads, new_parts = backend.run_in_place(wrapper, key, compute, whole, (given, scalars))
    each = zip(itertools.chain(*parts), new_parts, strict=True)
    backend.commit([write(v, value, rows) for (v, rows), value in each if value is not None])
    grads = list(incoming.grads)
    for one, g in zip(reached, new_grads, strict=True):
        if g is not None:
            old_g = grads[one.number]
            grads[one.number] = old_g.map(lambda _, g=g: g) if one.seen.rows else g
    return grads


class Reached(NamedTuple):
    """A variable that a hook reaches."""

    number: int
    """Its place in the step."""
    seen: Seen
    given: tuple[Any, Any, Any]
    """The gradient; the mask of rows that may change, or None; and the value of `t.old`, or None.
    """
    owned: list[Any]
    """The variable, its master copy, if there is one, and the slots."""
    indices: Any
    """The rows that the hook sees; None is all."""

    def parts(self) -> list[tuple[Any, Any]]:
        """Return the variables of which the hook sees rows, each with the indices of these."""
        each = zip(self.owned, self.seen.cut, strict=True)
        return [(variable, self.indices) for variable, is_cut in each if is_cut]

    def whole(self) -> list[Any]:
        """Return the variables that the hook sees whole."""
        each = zip(self.owned, self.seen.cut, strict=True)
        return [variable for variable, is_cut in each if not is_cut]


def _reached(wrapper: Any, incoming: Incoming, old: list[Any] | None) -> list[Reached]:
    """Return the variables that a hook reaches."""
    found = []
    for number, (gradient, variable, place, named) in enumerate(zip(*incoming, strict=True)):
        entry = wrapper._state.entries[place]
        if entry.reach is not None:
            g, mask, rows = _as_seen(wrapper, entry, place, gradient, named)
            given = g, mask, None if old is None else old[number]
            owned = [variable, *entry.masters, *entry.slots.values()]
            indices = gradient.indices if rows else None
            found.append(Reached(number, Seen(entry, rows), given, owned, indices))
    return found


class Seen:
    """What the hooks of a variable depend on, besides tensors; equal for variables that are alike.

    Args:
        entry: What the wrapper keeps for the variable.
        rows: Whether hooks see touched rows only.
    """

    def __init__(self, entry: Entry, rows: bool):
        self.rows, self.has_master, self.names = rows, bool(entry.masters), tuple(entry.slots)
        self.dtype, self.scalars, self.facts = entry.like.dtype, entry.scalars, entry.facts
        self.by_row = dict(zip(self.names, entry.cut[1:], strict=True))
        # For the variable, the master copy and slots: whether the hooks see rows of them.
        kept = [True] * (1 + self.has_master) + list(self.by_row.values())
        self.cut = tuple(rows and by_row for by_row in kept)
        own = self.cut, tuple(kept), self.has_master, self.names, self.dtype, self.scalars
        self._key = (*own, entry.like.shape, identity(self.facts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _call(
    wrapper: Any,
    call: Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, dict]],
    one: Seen,
    scalars: dict[str, Any],
    g: Any,
    mask: Any,
    before: Any,
    variable: Any,
    *kept: Any,
) -> list[Any]:
    """Call a hook for one variable.

    Args:
        wrapper: The optimizer with the hook.
        call: As for `run`.
        one: What the hook depends on.
        scalars: The scalars of the step.
        g: The gradient.
        mask: The rows that may change; None is all.
        before: The value of `t.old`, or None.
        variable: The value of the variable.
        *kept: The master copy, if there is one, and the slots.

    Returns:
        The new gradient; the new variable, master copy and slots. Of these, None stays as it is.
    """
    master, slots = kept[: one.has_master], kept[one.has_master :]
    x = current = current_value(variable, master[0] if master else None, one.dtype)
    if before is not None:
        scalars = {**scalars, "old": ops.cast(before, one.dtype)}
    t = Scalars(scalars, one.facts, one.rows, OVER_ONE, mask)
    s = slots_type(one.names)(*slots)
    seen_g = g if wrapper.needs_gradient else None
    new_g, x, new = call(wrapper.hooks_in(scalars), seen_g, x, s, t)
    if mask is not None:
        x = ops.where(mask, x, current)
        for slot, value in new.items():
            if one.by_row[slot]:
                of_slot = ops.reshape(mask, (-1, *[1] * (len(value.shape) - 1)))
                new[slot] = ops.where(of_slot, value, getattr(s, slot))
    masters = [ops.cast(x, one.dtype)] * one.has_master
    own = [ops.cast(x, variable.dtype), *masters, *map(new.get, one.names)]
    return [None if new_g is seen_g else new_g, *own]


def kept_unless_accepted(
    wrapper: Any, incoming: Incoming, scalars: Known
) -> list[tuple[Any, Any, Any]]:
    """Return `(variable, accepted, old value)` for what is restored if `accept` says no."""
    chosen, keys, each = [], [], []
    for gradient, variable, place, _ in zip(*incoming, strict=True):
        if wrapper._overwrite_variable_with_gradient(variable):
            continue
        entry = wrapper._state.entries[place]
        chosen.append((variable, place))
        keys.append(Seen(entry, False))
        each.append((gradients.dense(gradient), exact_value(entry, variable)))

    def of(one: Seen) -> Callable[..., list[Any]]:
        found = scalars[one.scalars]
        t = Scalars(found, one.facts, False, OVER_ONE)
        return lambda g, x: [ops.cast(wrapper.hooks_in(found).accept(g, x, t), "bool")]

    kept: list[tuple[Any, Any, Any]] = []
    if not each:
        return kept
    answers = [accepted for (accepted,) in backend.map_alike(wrapper, "accept", of, keys, each)]
    together = ops.stack(answers)
    if backend.limits(ops.cast(together, "int32")) is None:  # compiled: the answers come later
        accepts = [False] * len(answers)
    else:
        accepts = ops.convert_to_numpy(together)
    for (variable, place), accepted, is_accepted in zip(chosen, answers, accepts, strict=True):
        if is_accepted:
            continue
        averages = wrapper._pipeline.mover.averages_of(place)
        for owned in [variable, *wrapper.state_inside(place), *averages]:
            kept.append((owned, accepted, ops.copy(backend.read(owned))))
    return kept


def run_where(owner: Any, condition: Any, variables: list[Any], step: Callable[[], None]) -> None:
    """Make a step of some variables where a condition holds, on workers in one program.

    All of them make the step. Where the condition does not hold, the variables and the state of the
    optimizer get their old values.
    """
    changed = [*owner.variables, *variables]
    kept = [(variable, condition, ops.copy(backend.read(variable))) for variable in changed]
    step()
    put_back(owner, kept)


def put_back(wrapper: Any, kept: list[tuple[Any, Any, Any]]) -> None:
    """Give variables their old values where `accept` said no."""

    def of(key: str) -> Callable[..., list[Any]]:
        return lambda accepted, new, old: [ops.where(accepted, new, old)]

    now = [(accepted, backend.read(variable), old) for variable, accepted, old in kept]
    values = backend.map_alike(wrapper, "put_back", of, ["where"] * len(kept), now)
    variables = [variable for variable, *_ in kept]
    backend.commit([(v, None, x) for v, (x,) in zip(variables, values, strict=True)])


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
