"""Hooks of wrappers that run in one call with the rule: what is compiled reads all only once.

A rule with hooks of elements around it is a rule of elements, with the slots and the scalars of
all of them. This is for backends that compile rules alone, not the whole step.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.engine.construction import identity
from keras_tfopt.engine.gradients import NOTHING, Incoming
from keras_tfopt.engine.hyperparameters import Known, Over, Rates, Scalars
from keras_tfopt.engine.moving import Update, over_one
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state import MASTER

AROUND = "around."  # begins the names of scalars that belong to wrappers
APART = ("before_step", "accept", "after_step", "meet")
"""What a wrapper does between its hooks and the rule, or with all variables at once."""

Combination = tuple[int, tuple[tuple[int, Any], ...]]
"""The number of a learning rate, and for wrappers by number the key of their scalars."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The hooks of one wrapper for some variables.

    Attributes:
        prefix: Begins the names of the wrapper's scalars and slots.
        hooks: The `self` of the hooks, which holds the wrapper's arguments.
        names: Those of the slots.
        facts: What is in `t` of the variable.
        calls: Which of "before" and "after" there are.
    """

    prefix: str
    hooks: Any
    names: tuple[str, ...]
    facts: tuple[tuple[str, Any], ...]
    calls: tuple[str, ...]

    def key(self) -> tuple:
        """Equal for parts that can share compiled code."""
        arguments = identity(dict(vars(self.hooks)))
        return type(self.hooks), arguments, self.prefix, self.names, self.facts, self.calls


class Joined(NamedTuple):
    """Variables that move by the rule and all hooks in one call, in a step."""

    joining: Joining
    incoming: Incoming
    known: list[Known]
    """The scalars of each wrapper."""


class Joining:
    """The hooks of wrappers around a rule, as a part of the rule.

    Args:
        wrappers: The wrappers, the outermost first.
        mover: What moves variables by the rule.
    """

    def __init__(self, wrappers: Sequence[Any], mover: Any):
        self.wrappers, self.mover = wrappers, mover
        # For places of variables, what makes their updates; None where hooks have to run apart.
        self._makers: dict[int, Callable[..., Update] | None] = {}
        # What an update knows of a step, by the key of the rule's scalars.
        self._combinations: dict[tuple[str, int], list[Combination]] = {}
        for place in range(len(mover.optimizer._state.entries)):
            self._maker(place)

    def split(self, incoming: Incoming, known: list[Known]) -> tuple[Incoming, Joined]:
        """Return what moves with hooks apart, and what in one call."""
        apart: list[tuple] = []
        here: list[tuple] = []
        for one in zip(*incoming, strict=True):
            gradient, _, place, named = one
            is_plain = named is None and not isinstance(gradient, RowGradient)
            (here if is_plain and self._maker(place) is not None else apart).append(one)
        each = [
            Incoming(*map(list, zip(*some, strict=True))) if some else NOTHING
            for some in (apart, here)
        ]
        return each[0], Joined(self, each[1], known)

    def updates(self, incoming: Incoming) -> list[Update]:
        """Return the updates of variables that move in one call."""
        each = zip(incoming.grads, incoming.variables, incoming.places, strict=True)
        return [self._makers[place](variable, g) for g, variable, place in each]  # type: ignore[misc]

    def scalars(
        self, of_rule: dict[tuple[str, int], Rates], known: list[Known]
    ) -> dict[tuple[str, int], Rates]:
        """Return the scalars of a step, those of wrappers under names with a prefix."""
        found = {}
        for key in of_rule.keys() & self._combinations.keys():
            each = []
            for rate, keys in self._combinations[key]:
                own = dict(of_rule[key].each[rate])
                for number, of_wrapper in keys:
                    # Of variables that are not in this step, nobody asks.
                    values = known[number].get(of_wrapper) or next(iter(known[number].values()))
                    own.update({f"{AROUND}{number}.{n}": v for n, v in values.items()})
                each.append(own)
            together = each[0]
            if len(each) > 1:  # a scalar that only some have is never read by others
                known_somewhere = {n: value for one in each for n, value in one.items()}
                each = [{**known_somewhere, **one} for one in each]
                together = {n: ops.stack([one[n] for one in each]) for n in known_somewhere}
            found[key] = Rates(together, len(each))
        return found

    def _maker(self, place: int) -> Callable[..., Update] | None:
        """Return what makes updates of a variable; bound once."""
        if place not in self._makers:
            self._makers[place] = self._bind(place)
        return self._makers[place]

    def _bind(self, place: int) -> Callable[..., Update] | None:
        entry = self.mover.optimizer._state.entries[place]
        kept = keras.backend.standardize_dtype(entry.variable.dtype)
        is_plain = not (entry.has_rows or MASTER in entry.slots or entry.variable.constraint)
        if entry.rests or not is_plain or kept != entry.like.dtype:
            return None
        of_rule = self.mover.bind(place, "dense", False)
        kind, _, like, names, slots, cut, call = of_rule.args
        if not kind.flat:
            return None
        parts, keys, own = [], [], []
        scope = kind.scope
        for number, wrapper in enumerate(self.wrappers):
            here = wrapper._state.entries[place]
            calls = tuple(name for name in ("before", "after") if name in wrapper.defines)
            if here.reach is None or not calls:
                continue
            facts = tuple(here.facts.items())
            prefix = f"{AROUND}{number}."
            parts.append(Part(prefix, wrapper.hooks_alone(), tuple(here.slots), facts, calls))
            keys.append((number, here.scalars))
            own += here.slots.values()
            scope = scope if wrapper.scope == "element" else "variable"
        combinations = self._combinations.setdefault((kind.dtype, kind.rule), [])
        combination = of_rule.keywords["rate"], tuple(keys)
        if combination not in combinations:
            combinations.append(combination)
        rate = combinations.index(combination)
        if not parts:
            return functools.partial(of_rule, rate=rate)
        around = tuple(part.key() for part in parts)
        kind = dataclasses.replace(kind, scope=scope, around=around)
        names = (*names, *(part.prefix + name for part in parts for name in part.names))
        joined = _joined(parts, call, len(slots), over_one())
        slots, cut = [*slots, *own], (*cut, *[False] * len(own))
        return functools.partial(Update, kind, place, like, names, slots, cut, joined, rate=rate)


def can_join(wrappers: Sequence[Any]) -> bool:
    """Return whether hooks of these wrappers, of which there are some, can be part of a rule."""
    return all(map(_is_part, wrappers)) and any(map(has_hooks, wrappers))


def has_hooks(wrapper: Any) -> bool:
    """Return whether a wrapper does anything with single variables around a step."""
    return not wrapper.defines.isdisjoint(("before", "after"))


def _is_part(wrapper: Any) -> bool:
    is_flat = wrapper.scope == "element" or wrapper.flat or not has_hooks(wrapper)
    return is_flat and wrapper.defines.isdisjoint(APART)


def _check_gradient(hooks: Any, is_same: bool) -> None:
    if not is_same:
        name = type(hooks).__name__
        raise TypeError(
            f"{name}.before must return the gradient as it came, since the class attribute `scope` "
            'of the wrapper is "element", or `flat` is True. Received: another gradient'
        )


def _joined(
    parts: Sequence[Part], call: Callable[..., tuple[Any, list[Any]]], count: int, over: Over
) -> Callable[..., tuple[Any, list[Any]]]:
    """Return the rule with hooks around it; `count` slots are the rule's."""
    types = [collections.namedtuple("Slots", part.names) for part in parts]  # type: ignore[misc]

    def joined(
        g: Any,
        x: Any,
        slots: Sequence[Any],
        scalars: dict,
        mask: Any = None,
        over: Over = over,
        apart: Any = None,
    ) -> tuple[Any, list[Any]]:
        of_rule = {n: v for n, v in scalars.items() if not n.startswith(AROUND)}
        seen, start = [], count
        for part, slots_of in zip(parts, types, strict=True):
            end = start + len(part.names)
            s = slots_of(*slots[start:end])
            own = {
                n.removeprefix(part.prefix): v
                for n, v in scalars.items()
                if n.startswith(part.prefix)
            }
            seen.append((s, Scalars(own, dict(part.facts), False, over)))
            start = end
        for part, (s, t) in zip(parts, seen, strict=True):
            if "before" in part.calls:
                seen_g = g if part.hooks.needs_gradient else None
                new_g, x = part.hooks.before(seen_g, x, s, t)
                _check_gradient(part.hooks, new_g is seen_g)
        old = x
        x, changed = call(g, x, slots[:count], of_rule, mask, over, apart)
        new: list[list[Any]] = []
        for part, (s, t) in zip(reversed(parts), reversed(seen), strict=True):
            found: dict[str, Any] = {}
            if "after" in part.calls:
                if part.hooks.needs_old:
                    t.old = old
                x, found = part.hooks.after(g if part.hooks.needs_gradient else None, x, s, t)
            new.insert(0, [found.get(name) for name in part.names])
        return x, [*changed, *(value for values in new for value in values)]

    return joined
