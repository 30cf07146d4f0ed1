"""Join hooks of wrappers with the rule inside, so that compiled code reads each number only once.

The hooks become part of the formula: a rule of scope "element" with elementwise hooks around it is
a rule of scope "element", with the slots and scalars of all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.engine.arguments.construction import instance
from keras_tfopt.engine.arguments.hyperparameters import Known, Over, Rates, Scalars, arguments_in
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.building import generators_of
from keras_tfopt.engine.state.state import MASTER, slots_type
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.moving import OVER_ONE, Update, current_value
from keras_tfopt.engine.step.results import checked_before
from keras_tfopt.engine.step.shared_code import code_of, identity

AROUND = "around."  # prefix of names of scalars and slots that belong to wrappers
APART = ("before_step", "accept", "after_step", "meet")
"""Methods that run between hooks and the rule, or for all variables at once."""

Combination = tuple[int, tuple[tuple[int, Any], ...]]
"""The index of a learning rate of the rule, and pairs of a wrapper's index and its scalars' key."""


class Given(NamedTuple):
    """What the hooks of one wrapper are called with."""

    hooks: Any
    s: Any
    t: Scalars


@dataclasses.dataclass(frozen=True)
class Part:
    """The hooks of one wrapper for some variables.

    Attributes:
        code: The result of `code_of` for the wrapper.
        prefix: Prefix of the names of the wrapper's scalars and slots.
        hooks: The `self` of the hooks, which holds the wrapper's arguments.
        changing: Names of the arguments that are numbers of each step.
        names: Names of the slots.
        facts: Facts about the variable, for `t`.
        calls: The hooks that there are, of "before" and "after".
    """

    code: Any
    prefix: str
    hooks: Any
    changing: tuple[str, ...]
    names: tuple[str, ...]
    facts: tuple[tuple[str, Any], ...]
    calls: tuple[str, ...]

    def key(self) -> tuple:
        """Return a key that is equal for parts that can share compiled code."""
        arguments = identity(dict(vars(self.hooks)))
        return self.code, arguments, self.prefix, self.names, self.facts, self.calls

    def given(self, slots: Sequence[Any], scalars: Mapping[str, Any], over: Over) -> Given:
        """Return what the hooks are called with in a step."""
        each = scalars.items()
        own = {n.removeprefix(self.prefix): v for n, v in each if n.startswith(self.prefix)}
        hooks = self.hooks
        if self.changing:
            now = arguments_in(own, self.changing)
            hooks = instance(type(hooks), {**vars(hooks), **now})
        t = Scalars(own, dict(self.facts), False, over)
        return Given(hooks, slots_type(self.names)(*slots), t)


class Joined(NamedTuple):
    """The variables of a step whose hooks run in one call with the rule."""

    joining: Joining
    incoming: Incoming
    known: list[Known]
    """The scalars of each wrapper."""


class Joining:
    """The hooks of wrappers as a part of the rule inside.

    Args:
        wrappers: The wrappers, the outermost first.
        mover: The `Mover` of the rule.
    """

    def __init__(self, wrappers: Sequence[Any], mover: Any):
        self.wrappers, self.mover = wrappers, mover
        # By the dtype and the index of the rule's hyperparameters: the combinations of scalars of
        # the rule and the wrappers that variables have.
        self._combinations: dict[tuple[str, int], list[Combination]] = {}
        # For the place of each variable: a function that returns its update, or None if its hooks
        # have to run separately.
        self._makers: list[Callable[..., Update] | None] = []
        self._bind_new()

    def split(self, incoming: Incoming, known: list[Known]) -> tuple[Incoming, Joined]:
        """Return the variables whose hooks run separately, and the others."""
        self._bind_new()
        apart: list[int] = []
        together: list[int] = []
        for n, (gradient, _, place, named) in enumerate(zip(*incoming, strict=True)):
            is_plain = named is None and not isinstance(gradient, RowGradient)
            (together if is_plain and self._makers[place] else apart).append(n)
        return incoming.only(apart), Joined(self, incoming.only(together), known)

    def updates(self, incoming: Incoming) -> list[Update]:
        """Return the updates of variables whose hooks run in one call with the rule."""
        each = zip(incoming.grads, incoming.variables, incoming.places, strict=True)
        return [self._makers[place](variable, g) for g, variable, place in each]  # type: ignore[misc]

    def scalars(
        self, of_rule: dict[tuple[str, int], Rates], known: list[Known]
    ) -> dict[tuple[str, int], Rates]:
        """Return the scalars of the rule and the wrappers in a step, for `updates`."""
        found = {}
        for key in of_rule.keys() & self._combinations.keys():
            each = []
            for rate, keys in self._combinations[key]:
                own = dict(of_rule[key].each[rate])
                for number, of_wrapper in keys:
                    # Scalars of variables that are not in this step are not read.
                    values = known[number].get(of_wrapper) or next(iter(known[number].values()))
                    own.update({f"{AROUND}{number}.{n}": v for n, v in values.items()})
                each.append(own)
            together = each[0]
            if len(each) > 1:  # others do not read scalars that only some have
                known_somewhere = {n: value for one in each for n, value in one.items()}
                each = [{**known_somewhere, **one} for one in each]
                together = {n: ops.stack([one[n] for one in each]) for n in known_somewhere}
            found[key] = Rates(together, len(each))
        return found

    def _bind_new(self) -> None:
        """Bind the variables that `extend` has added."""
        for place in range(len(self._makers), len(self.mover.optimizer._state.entries)):
            self._makers.append(self._bind(place))

    def _bind(self, place: int) -> Callable[..., Update] | None:
        """Return a function that makes updates of a variable; None if hooks run separately."""
        entry = self.mover.optimizer._state.entries[place]
        if entry.rests or entry.has_rows or entry.variable.constraint:
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
            own_hooks, changing = wrapper.hooks_alone(), tuple(wrapper._changing)
            names_here = tuple(here.slots)
            parts.append(
                Part(code_of(wrapper), prefix, own_hooks, changing, names_here, facts, calls)
            )
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
        joined = _with_hooks(parts, call, len(slots), OVER_ONE, like.dtype, MASTER in entry.slots)
        slots, cut = [*slots, *own], (*cut, *[False] * len(own))
        return functools.partial(Update, kind, place, like, names, slots, cut, joined, rate=rate)


def can_join(wrappers: Sequence[Any]) -> bool:
    """Return whether there are hooks of single variables, and all can be part of the rule."""
    return all(map(_is_part, wrappers)) and any(map(has_hooks, wrappers))


def has_hooks(wrapper: Any) -> bool:
    """Return whether a wrapper has hooks of single variables."""
    return not wrapper.defines.isdisjoint(("before", "after"))


def _is_part(wrapper: Any) -> bool:
    is_flat = wrapper.scope == "element" or wrapper.flat or not has_hooks(wrapper)
    # PyTorch draws no numbers in compiled code.
    return is_flat and wrapper.defines.isdisjoint(APART) and not generators_of(wrapper)


def _with_hooks(
    parts: Sequence[Part],
    call: Callable[..., tuple[Any, list[Any]]],
    count: int,
    over: Over,
    dtype: str,
    has_master: bool,
) -> Callable[..., tuple[Any, list[Any]]]:
    """Return the bound rule `call` with hooks around it; its other arguments `how` stay the same.

    Args:
        parts: The hooks.
        call: The bound rule.
        count: The number of its slots.
        over: The functions of a variable for formulas that see it as a whole.
        dtype: The dtype of the arithmetic.
        has_master: Whether the last slot of the rule is a master copy, which hooks see and change.
            Otherwise they see the variable as it is kept, so it is rounded between them.
    """

    def joined(
        g: Any,
        x: Any,
        slots: Sequence[Any],
        scalars: dict,
        mask: Any = None,
        over: Over = over,
        **how: Any,
    ) -> tuple[Any, list[Any]]:
        of_rule = {n: v for n, v in scalars.items() if not n.startswith(AROUND)}
        others = iter(slots[count:])
        seen = [p.given([next(others) for _ in p.names], scalars, over) for p in parts]
        own_slots, kept = list(slots[:count]), x.dtype
        rounds = not has_master and keras.backend.standardize_dtype(kept) != dtype

        def rounded(x: Any) -> Any:
            return ops.cast(ops.cast(x, kept), dtype) if rounds else x

        x = current_value(x, own_slots[-1] if has_master else None, dtype)
        changes: list[dict[str, Any]] = []
        for number, (part, (hooks, s, t)) in enumerate(zip(parts, seen, strict=True)):
            found: dict[str, Any] = {}
            if "before" in part.calls:
                given_g = g if hooks.needs_gradient else None
                result = hooks.before(given_g, x, s, t)
                _, x, found = checked_before(hooks, result, given_g, x, s._asdict())
                x = rounded(x)
                seen[number] = Given(hooks, s._replace(**found), t)
            changes.append(found)
        old = x
        if has_master:
            own_slots[-1] = x
        x, changed = call(g, x, own_slots, of_rule, mask, over, **how)
        x = rounded(x)
        each = zip(reversed(parts), reversed(seen), reversed(changes), strict=True)
        for part, (hooks, s, t), found in each:
            if "after" in part.calls:
                if hooks.needs_old:
                    t.old = old
                x, new = hooks.after(g if hooks.needs_gradient else None, x, s, t)
                x = rounded(x)
                found.update(new)
        if has_master:
            changed[-1] = x
        for part, found in zip(parts, changes, strict=True):
            changed = [*changed, *map(found.get, part.names)]
        return ops.cast(x, kept), changed

    return joined
