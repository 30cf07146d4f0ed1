"""Move variables by a rule, one at a time: whole variables, or some of their rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import (
    REFUSED,
    Over,
    Rates,
    Scalars,
    arguments_in,
    mean,
)
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.dither import seed_of
from keras_tfopt.engine.state.state import MASTER, Like, names_without_scales, slots_type, write
from keras_tfopt.engine.state.stored import in_row_blocks, read_slots, written_slots
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.kinds import Kind
from keras_tfopt.engine.step.results import check_result
from keras_tfopt.engine.step.stacking import run_stacked

if TYPE_CHECKING:
    from keras_tfopt.engine.step.joining import Joined


OVER_ONE = Over(backend.norm, ops.sum, mean)
"""The functions of a variable for formulas that see it as a whole."""


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


def rule_at(rule: Any, changing: tuple[str, ...], scalars: dict[str, Any]) -> Any:
    """Return the rule with the attributes of a step, from its scalars."""
    return rule.with_attributes(arguments_in(scalars, changing))


def bind_rule(
    rule: Any,
    kind: Kind,
    names: tuple[str, ...],
    over: Over,
    changing: tuple[str, ...] = (),
) -> Callable[..., tuple[Any, list[Any]]]:
    """Return a function that updates one variable by a rule.

    Around the rule, it does what all rules need: casts, weight decay, master weights, masks of
    rows, and decoding and encoding of slots that are kept in fewer bytes.

    It is pure, and all static arguments are bound, so that it can be compiled. It returns the new
    variable, and the new slots in the order of `names`, None for those that stay. Hyperparameters
    that are `changing` are among the scalars. A backend may pass a function `apart`, by which to
    call the rule, and `narrow=False`, to give and get bfloat16 slots as float32.
    """
    kept_names = [name for name in names if name != MASTER]
    seeds = {one.slot: seed_of(one.slot) for one in kind.stored}
    own_names = names_without_scales(kept_names, kind.stored)
    slots_of = slots_type(own_names)
    rows, of_elements = kind.mode in ("rows", "touched"), kind.scope == "element"
    method = f"{type(rule).__name__}.update"
    has_master = MASTER in names

    def call(
        g: Any,
        x: Any,
        slots: Sequence[Any],
        scalars: dict,
        mask: Any = None,
        over: Over = over,
        *,
        apart: Callable[[Callable[[], Any]], Any] | None = None,
        narrow: bool = True,
    ) -> tuple:
        old = x
        *as_stored, master = slots if has_master else (*slots, None)
        kept = as_stored
        if kind.stored:
            kept = read_slots(kept_names, as_stored, kind.stored, kind.dtype)
        x = start = current_value(x, master, kind.dtype)
        if kind.decays:
            x = backend.add_scaled(x, x, -scalars["weight_decay_rate"])
        t = Scalars(scalars, dict(kind.facts), rows, REFUSED if of_elements else over, mask)
        now = rule_at(rule, changing, scalars) if changing else rule
        s = slots_of(*kept)
        g = ops.cast(g, kind.dtype)
        result = now.update(g, x, s, t) if apart is None else apart(lambda: now.update(g, x, s, t))
        x, new = check_result(method, result, start, s._asdict())
        if mask is not None:
            x = ops.where(mask, x, start)
        if kind.stored:
            before = dict(zip(kept_names, as_stored, strict=True))
            new = written_slots(new, before, kind.stored, seeds, scalars, narrow)
        changed = [x if name == MASTER else new.get(name) for name in names]
        return ops.cast(x, old.dtype), changed

    return call


def current_value(variable: Any, master: Any, dtype: str) -> Any:
    """Return the value to compute with: the master copy, except for numbers assigned since."""
    x = ops.cast(variable, dtype)
    if master is None:
        return x
    return ops.where(ops.equal(ops.cast(master, variable.dtype), variable), master, x)


class Mover:
    """Move variables by a rule. `ForeignMover` moves them by an optimizer that is not ours.

    Args:
        engine: The optimizer of the rule, which has options and state.
    """

    takes_all = False
    """Whether one call of the rule sees all variables."""

    def __init__(self, engine: Any):
        self.optimizer = engine
        self.needs_finite = engine.needs_finite

    # ---- What the pipeline asks, in the order of a step -----------------------------------------

    def raise_refused_rows(self) -> None:
        """Raise an error for rows out of range in earlier compiled steps."""
        counter = self.refused_rows()
        refused = None if counter is None else backend.limits(ops.convert_to_tensor(counter))
        if refused is not None and refused[1] > 0:
            counter.assign(0)
            raise ValueError(
                "Row indices of gradients must lie between 0 and the number of rows less one. "
                f"Received: {refused[1]} indices out of range in earlier compiled steps, which "
                "left them out"
            )

    def refused_rows(self) -> Any:
        """Return the variable that counts rows out of range in compiled steps, or None."""
        return self.optimizer._state.other.get("refused_rows")

    def refuse_unless_finite(self, grads: list[Any], variables: list[Any]) -> None:
        """Raise an error for gradients that would spoil the state; compiled steps cannot."""
        values = [gradients.values_of(g) for g in grads]
        gradients.refuse_unless_finite(self.optimizer, values, variables)

    def overwrite(self, grads: list[Any], variables: list[Any]) -> None:
        """Overwrite variables with their gradients, as Keras asks for some variables."""
        self.optimizer._overwrite_variables_directly_with_gradients(grads, variables)

    def accumulate(self, grads: list[Any], places: list[int]) -> None:
        """Add the gradients of a micro-step to the sums."""
        entries = [self.optimizer._state.entries[place] for place in places]
        backend.accumulate([entry.accumulator for entry in entries], grads)
        for g, entry in zip(grads, entries, strict=True):
            if entry.touched_rows is not None and gradients.is_named(g):
                marks = ops.ones_like(g.indices, dtype="bool")
                backend.commit([(entry.touched_rows, g.indices, marks)])

    def means(self, grads: list[Any], places: list[int]) -> tuple[list[Any], list[Any]]:
        """Return the mean gradients of a step, and for each the mask of named rows, or None.

        A variable that is listed twice has one mean.
        """
        named = {p for g, p in zip(grads, places, strict=True) if gradients.is_named(g)}
        sums, masks = [], []
        for place in dict.fromkeys(places):
            entry = self.optimizer._state.entries[place]
            sums.append(backend.read(entry.accumulator))
            kept = entry.touched_rows if place in named else None
            masks.append(None if kept is None else backend.read(kept))
        return backend.divide_all(sums, self.optimizer.gradient_accumulation_steps), masks

    def only_moves(self, as_they_come: bool) -> bool:
        """Return whether a step applies the rule and does no more than clip or negate gradients.

        With `as_they_come`, return whether gradients stay as they are, too.
        """
        own = self.optimizer
        more = own.use_ema or own.bounds_norms or own.clips_units or own.stacked
        return not (more or as_they_come and self._changes_gradients())

    def _changes_gradients(self) -> bool:
        own = self.optimizer
        return bool(own.maximize or own.clipvalue or own.clipnorm or own.global_clipnorm)

    def move(self, incoming: Incoming, joined: Joined | None = None) -> None:
        """Make a step: clip, apply the rule, average, constrain.

        Args:
            incoming: The gradients and their variables.
            joined: The variables whose hooks run in one call with the rule.
        """
        own, count = self.optimizer, len(incoming.grads)
        if own.clips_units:
            incoming = gradients.clip_units(own, incoming)
        if self._changes_gradients():
            grads = [*incoming.grads, *(() if joined is None else joined.incoming.grads)]
            grads = gradients.clip_and_orient(own, grads)
            incoming = incoming._replace(grads=grads[:count])
            if joined is not None:
                others = joined.incoming._replace(grads=grads[count:])
                joined = joined._replace(incoming=others)
        self._apply_rule(incoming, joined)
        if own.bounds_norms:
            self._bound_norms(incoming)
        if own.use_ema:
            self._average()
        for variable in incoming.variables:
            if variable.constraint is not None:
                backend.commit([(variable, None, variable.constraint(variable))])

    def forget(self) -> None:
        """Reset the sums of gradients to zero."""
        entries = self.optimizer.entries_here()
        backend.clear(
            [s for e in entries for s in (e.accumulator, e.touched_rows) if s is not None]
        )

    def count(self, last: Any) -> None:
        """Count a micro-step; `last` is whether it was the last one of its step, or None."""
        done = self.optimizer._iterations
        backend.commit([(done, None, backend.read(done) + 1)])

    # ---- What wrappers ask ----------------------------------------------------------------------

    def is_of_rows(self, place: int) -> bool:
        """Return whether `row_variables` chooses the variable at this place."""
        return self.optimizer._state.entries[place].has_rows

    def state_of(self, place: int) -> list[Any]:
        """Return the state of the rule for one variable."""
        return list(self.optimizer._state.entries[place].slots.values())

    def averages_of(self, place: int) -> list[Any]:
        """Return the average of one variable by `use_ema`, if there is one."""
        average = self.optimizer._state.entries[place].average
        return [] if average is None else [average]

    def master_of(self, place: int) -> Any:
        """Return the slot with the variable in full precision, or None."""
        return self.optimizer._state.entries[place].slots.get(MASTER)

    # ---- The rule -------------------------------------------------------------------------------

    def _apply_rule(self, incoming: Incoming, joined: Joined | None) -> None:
        own = self.optimizer
        updates = list(map(self._update, *incoming))
        together = [] if joined is None else joined.joining.updates(joined.incoming)
        scalars: dict[tuple[str, int], Rates] = {}
        for update in (*updates, *together):
            key = update.kind.dtype, update.kind.rule
            if key not in scalars:
                scalars[key] = own._hyperparameters[key[1]].rates(key[0], backend.compute_scalars)
        if joined is not None and together:
            backend.execute(own, together, joined.joining.scalars(scalars, joined.known))
        # A variable that is listed twice moves twice.
        repeats = len(set(incoming.places)) < len(updates)
        for one in rounds(updates) if repeats else [updates]:
            backend.execute(own, run_stacked(own, one, scalars) if own.stacked else one, scalars)
        if own.powers is not None:
            own.powers.advance(own)

    def _update(self, gradient: Any, variable: Any, place: int, named: Any) -> Update:
        """Return the update of a variable for a gradient: of the whole variable, or of rows.

        `named` is the mask of named rows of an accumulated gradient, or None.
        """
        entry = self.optimizer._state.entries[place]
        in_rows = isinstance(gradient, RowGradient)
        if not (in_rows or entry.has_rows or named is not None):  # the usual case, to be fast
            made = self.optimizer._statics.get(place) or self.bind(place, "dense", False)
            return made(variable, gradient)
        mode, mask = "dense", None
        by_name = in_rows and gradient.named or named is not None
        if entry.sparse != "dense" and (by_name or entry.has_rows):
            mode = "move_rows" if entry.sparse != "rows" else "rows" if in_rows else "touched"
            mask = None if mode == "rows" else named
        if mode == "move_rows":
            by_name, mask = False, backend.row_mask(gradient)
            if named is not None:
                mask = mask | ops.reshape(named, mask.shape)
        if in_rows and mode != "rows":
            gradient = backend.to_dense(gradient)
        by_name = by_name and mode != "dense"
        key = place if mode == "dense" else (place, mode, by_name)
        made = self.optimizer._statics.get(key) or self.bind(place, mode, by_name)
        return made(variable, gradient, mask)

    def bind(self, place: int, mode: str, by_name: bool) -> Callable[..., Update]:
        """Return a function that makes updates of a variable from what differs between steps."""
        own = self.optimizer
        entry = own._state.entries[place]
        facts = tuple(entry.facts.items())
        if mode in ("rows", "touched") and not in_row_blocks(entry.stored, entry.slots):
            raise ValueError(
                f"Slots of {entry.like.path!r} are kept as int8 in blocks that do not end with "
                "rows, so that rows cannot be updated alone. Choose the variable by "
                "`row_variables`, and keep its slots as int8 by a group: "
                'groups={"<path>": {"slot_dtype": "int8"}}'
            )
        scope = own.scope_of(entry.like)
        of_entry = entry.like.dtype, scope, entry.decays, entry.rule
        flat = scope == "element" or own.flat or own.elementwise
        kind = Kind(mode, *of_entry, by_name, facts, entry.stored, flat)
        names = tuple(entry.slots)
        call = own._fast.get(("rule", kind, names))
        if call is None:
            rule, changing = own.rule_to_share(entry.rule)
            call = bind_rule(rule, kind, names, OVER_ONE, changing)
            own._fast["rule", kind, names] = call
        slots = list(entry.slots.values())
        of_variable = kind, place, entry.like, names, slots, entry.cut, call
        key = place if mode == "dense" else (place, mode, by_name)
        made = own._statics[key] = functools.partial(Update, *of_variable, rate=entry.rate)
        return made

    def _bound_norms(self, incoming: Incoming) -> None:
        """Scale down variables whose norms exceed `max_norm` of their groups."""
        entries = [self.optimizer._state.entries[place] for place in incoming.places]
        entries = [entry for entry in entries if entry.settings.max_norm is not None]
        values = [ops.cast(backend.read(entry.variable), entry.like.dtype) for entry in entries]
        if values:
            most = [entry.settings.max_norm for entry in entries]
            shorter = backend.scale_all(values, gradients.shrinking_each(values, most))
            pairs = zip(entries, shorter, strict=True)
            backend.commit([(entry.variable, None, x) for entry, x in pairs])

    def _average(self) -> None:
        """Update the averages of `use_ema`."""
        own = self.optimizer
        done = backend.read(own._iterations)
        count = done // (own.gradient_accumulation_steps or 1) + 1
        every = own.ema_overwrite_frequency
        entries = own.entries_here()
        ones, weights = {}, {}
        for dtype in {entry.average.dtype for entry in entries}:
            ones[dtype] = ops.convert_to_tensor(1.0, dtype)
            usual = ops.convert_to_tensor(1 - own.ema_momentum, dtype)
            weights[dtype] = ops.where(ops.equal(count, 1), ones[dtype], usual)
        for entry in entries:
            x = backend.read(entry.variable)
            # Scales of float8 are not averaged: the latest fits the latest inputs.
            weight = (ones if entry.overwritten else weights)[entry.average.dtype]
            backend.move_toward(entry.average, x, weight)
            if every:
                average = ops.cast(backend.read(entry.average), x.dtype)
                x = ops.where(ops.equal(count % every, 0), average, x)
                backend.commit([(entry.variable, None, x)])
