"""Rules that see all variables of a model at once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import Over, Scalars
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.state import (
    DECAY_FACTOR,
    FACTOR,
    MASTER,
    Like,
    overwritten_last,
    slots_type,
    widest,
    write,
)
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.moving import OVER_ONE, Mover, current_value, rule_at
from keras_tfopt.engine.step.results import check_described
from keras_tfopt.engine.step.slicing import SLICED_G, SLICED_X, sliced, steps_along


class ModelRule:
    """A rule over all variables at once, in three parts: pure functions that can be compiled.

    They compute with vectors: all numbers of the variables, end to end in the order of
    `overwritten_last`, or a piece of these.
    """

    def __init__(
        self,
        rule: Any,
        changing: tuple[str, ...],
        names: Sequence[str],
        along: Mapping[str, int],
        dtype: str,
        over: Over,
    ):
        self.names, self.along, self.dtype = tuple(names), along, dtype
        self.every = max(along.values(), default=1)
        self._all_slots = slots_type(names)
        small = [name for name in names if name not in along]
        self._small_slots = slots_type(small)
        self.rule = rule
        self._changing, self._over = changing, over

    def sums(
        self, g: Any, x: Any, slots: dict[str, Any], scalars: dict[str, Any], some: tuple = ()
    ) -> dict[str, Any]:
        """Return the contribution of a piece to the sums over all entries.

        `some` are the entries of g and x that slots with `every` keep, if there are such slots.
        """
        t = self._t(scalars, self._sliced(g, x, some))
        return self._rule(scalars).sums(g, x, self._all_slots(**slots), t)

    def solve(
        self, sums: dict[str, Any], slots: dict[str, Any], scalars: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return tensors for the update of each piece, and new values of slots without entries."""
        small = self._small_slots(**{n: v for n, v in slots.items() if n not in self.along})
        found, new = self._rule(scalars).solve(small, self._t(scalars, sums))
        return {**sums, **found}, self._checked("solve", new)

    def update(
        self,
        g: Any,
        x: Any,
        slots: dict[str, Any],
        scalars: dict[str, Any],
        known: dict[str, Any],
        some: tuple = (),
    ) -> tuple[Any, dict[str, Any]]:
        """Return a piece of the new variables, and of the new slots. `some` is as in `sums`."""
        t = self._t(scalars, {**known, **self._sliced(g, x, some)})
        new_x, new = self._rule(scalars).update(g, x, self._all_slots(**slots), t)
        return new_x, self._checked("update", new)

    def value(self, x: Any, master: Any) -> Any:
        """Return a variable to compute with, flat."""
        return ops.reshape(current_value(x, master, self.dtype), (-1,))

    def settled(
        self, one: ModelVariable, x: Any, new: Any, scalars: dict[str, Any], known: dict[str, Any]
    ) -> Any:
        """Apply learning rate factor and weight decay to a step from x to `new`; return the result.

        Weights decay after the update, so all parts of a rule see the x of the gradient.
        """
        if FACTOR in scalars:
            new = x + one.scalar(scalars, FACTOR) * (new - x)
        if not one.decays:
            return new
        return new - one.scalar(scalars, "weight_decay_rate") * known.get(DECAY_FACTOR, 1) * x

    def gradient(self, g: Any) -> Any:
        """Return a gradient to compute with, flat."""
        return ops.reshape(ops.cast(g, self.dtype), (-1,))

    def _sliced(self, g: Any, x: Any, some: tuple) -> dict[str, Any]:
        return dict(zip((SLICED_G, SLICED_X), some or (g, x), strict=True))

    def _rule(self, scalars: dict[str, Any]) -> Any:
        changing = self._changing
        return rule_at(self.rule, changing, scalars) if changing else self.rule

    def _t(self, scalars: dict[str, Any], known: dict[str, Any]) -> Scalars:
        return Scalars({**scalars, **known}, {}, False, self._over)

    def _checked(self, method: str, new: dict[str, Any]) -> dict[str, Any]:
        """Return new slots, of which None are unchanged."""
        check_described(f"{type(self.rule).__name__}.{method}", new, self.names)
        return {name: value for name, value in new.items() if value is not None}


@dataclasses.dataclass
class ModelVariable:
    """A variable among all those that a rule sees at once."""

    variable: Any
    like: Like
    start: int  # of its entries
    end: int
    decays: bool
    master: Any  # the slot with its copy in full precision, or None
    rate: int = 0  # the index of its learning rate among those that groups make

    def scalar(self, scalars: dict[str, Any], name: str) -> Any:
        """Return a scalar for this variable; there may be one for each learning rate."""
        value = scalars[name]
        return value[self.rate] if len(value.shape) else value


@dataclasses.dataclass
class ModelStep:
    """The rule, the variables and the slots of a step."""

    rule: ModelRule
    variables: list[ModelVariable]
    slots: dict[str, Any]

    def new_values(
        self, x: list[Any], masters: list[Any], slots: dict, grads: list[Any], scalars: dict
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Return new values of variables, master copies and slots, from all entries at once."""
        rule = self.rule
        values = zip(x, masters, strict=True)
        each_x = [rule.value(*each) for each in values]
        flat_g, flat_x = _joined([rule.gradient(g) for g in grads]), _joined(each_x)
        some = self._sliced(flat_g, flat_x)
        sums = rule.sums(flat_g, flat_x, slots, scalars, some)
        known, new = rule.solve(sums, slots, scalars)
        flat_x, more = rule.update(flat_g, flat_x, slots, scalars, known, some)
        parts = []
        for one, old in zip(self.variables, each_x, strict=True):
            part = rule.settled(one, old, flat_x[one.start : one.end], scalars, known)
            parts.append(ops.reshape(part, one.like.shape))
        masters = [None if m is None else v for m, v in zip(masters, parts, strict=True)]
        x = [ops.cast(v, old.dtype) for v, old in zip(parts, x, strict=True)]
        return x, masters, {**new, **more}

    def _sliced(self, *vectors: Any) -> tuple:
        if self.rule.every == 1:
            return ()
        ranges = [(one.start, one.end) for one in self.variables]
        return tuple(_joined(sliced(flat, ranges, self.rule.every)) for flat in vectors)


def _joined(parts: list[Any]) -> Any:
    return ops.concatenate(parts) if len(parts) > 1 else parts[0]


class AllVariablesMover(Mover):
    """Steps of a rule with scope "model". Variables without a gradient count with zeros and stay.

    Args:
        engine: The rule as an optimizer, which has options and state.
    """

    takes_all = True

    def only_moves(self, as_they_come: bool) -> bool:
        """Return False: the rule has no update for one variable."""
        return False

    def _apply_rule(self, incoming: Incoming, joined: Any = None) -> None:
        own = self.optimizer
        entries, known = overwritten_last(own._state.entries), own._state.entries
        pairs = zip(incoming.places, incoming.grads, strict=True)
        given = {id(known[place]): gradients.dense(g) for place, g in pairs}
        members, end = [], 0
        for entry in entries:
            start, end = end, end + math.prod(entry.like.shape)
            master = entry.slots.get(MASTER)
            facts = entry.like, start, end, entry.decays, master, entry.rate
            members.append(ModelVariable(entry.variable, *facts))
        if "model rule" not in own._fast:
            own._fast["model rule"] = self._bound_rule()
        step = ModelStep(own._fast["model rule"], members, own._state.shared)
        g = [given.get(id(entry)) for entry in entries]
        scalars = self._scalars(step.rule.dtype)
        if not backend.run_in_pieces(own, step, g, scalars):
            self._run_whole(step, g, scalars)

    def _scalars(self, dtype: str) -> dict[str, Any]:
        """Return the scalars of this step, with vectors for what groups multiply."""
        hyperparameters = self.optimizer._hyperparameters[0]
        decays, factors = hyperparameters.decays(dtype), hyperparameters.factors(dtype)
        scalars = hyperparameters.scalars(dtype, backend.compute_scalars, None, decays)
        if factors is not None:
            scalars[FACTOR] = factors
            if decays is not None:
                scalars["weight_decay_rate"] = scalars["weight_decay_rate"] * factors
        return scalars

    def _bound_rule(self) -> ModelRule:
        own = self.optimizer
        likes = [entry.like for entry in own._state.entries]
        along = steps_along(own.slots(likes))
        names, dtype = list(own._state.shared), widest([like.dtype for like in likes])
        rule, changing = own.rule_to_share()
        return ModelRule(rule, changing, names, along, dtype, OVER_ONE)

    def _run_whole(self, step: ModelStep, grads: list[Any], scalars: dict[str, Any]) -> None:
        members, names = step.variables, list(step.slots)
        owners = [i for i, one in enumerate(members) if one.master is not None]
        count, first = len(members), len(members) + len(owners)
        given = [i for i, g in enumerate(grads) if g is not None]

        def run(values: list[Any], inputs: tuple) -> tuple[None, list[tuple]]:
            copies = dict(zip(owners, values[count:first], strict=True))
            slots = dict(zip(names, values[first:], strict=True))
            x, masters, new = step.new_values(
                values[:count], [copies.get(i) for i in range(count)], slots, *inputs
            )
            writes = [write(i, x[i]) for i in given]
            writes += [write(count + n, masters[i]) for n, i in enumerate(owners) if i in given]
            writes += [write(first + names.index(name), value) for name, value in new.items()]
            return None, writes

        zeros = functools.partial(ops.zeros, dtype=step.rule.dtype)
        grads = [
            zeros(one.like.shape) if g is None else g for one, g in zip(members, grads, strict=True)
        ]
        everything = [one.variable for one in members]
        everything += [members[i].master for i in owners] + list(step.slots.values())
        key = ("model", tuple(given))
        backend.run_in_place(self.optimizer, key, run, everything, (grads, scalars))
