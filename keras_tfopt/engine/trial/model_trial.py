"""Try a rule over all variables at once when an optimizer is built; `trial.py` says why."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import Scalars, refusing
from keras_tfopt.engine.state.scopes import creating
from keras_tfopt.engine.state.state import Like, Rows, Slot, slots_type, widest
from keras_tfopt.engine.step.results import (
    check_described,
    check_dtype,
    check_result,
    check_shape,
    checked_scalars,
    checked_slots,
)
from keras_tfopt.engine.step.slicing import SLICED_G, SLICED_X, shape_of, sliced, steps_along
from keras_tfopt.engine.trial.locations import defined, located
from keras_tfopt.engine.trial.trial import (
    HALF,
    CannotTry,
    called,
    has_values,
    scalars_of,
    try_update,
)

if TYPE_CHECKING:
    from keras_tfopt.engine.engine import Engine


_REFUSED = refusing(
    'a rule with `scope = "model"` returns sums over all entries from `sums`, and computes with '
    "them in `solve`"
)


def check_rule(engine: Engine, likes: Sequence[Like]) -> None:
    """Raise an error if the rule cannot take a step on all these variables."""
    entries = sum(math.prod(like.shape) for like in likes)
    if entries:
        _try(engine, likes, entries)
        with contextlib.suppress(CannotTry):
            _try_pieces(engine, likes)


def _try(engine: Engine, likes: Sequence[Like], entries: int) -> None:
    rule, changing = engine.formula(), tuple(engine._changing)
    dtype = widest([like.dtype for like in likes])
    with located(rule, "slots"):
        slots = checked_slots(rule, rule.slots(likes))
    along = steps_along(slots)
    for name, slot in slots.items():
        if slot.initial == ("identity" if name in along else "variable"):
            raise ValueError(
                f"{type(rule).__name__}.slots may let slots that have entries, with None in their "
                "shape, start at a number or at the variables, others at a number or at the "
                f"identity. Received: {name}={slot!r}"
            )

    def take_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> Any:
        kept, numbers = dict(zip(slots, values, strict=False)), values[len(slots) :]
        now = engine.formula(dict(zip(changing, numbers, strict=True)))
        scalars = scalars_of(now, lr, number, dtype)
        some = _entries_kept(g, x, likes, max(along.values(), default=1))
        sums = _checked_sums(now, g, x, kept, {**scalars, **some})
        known = _checked_known(now, kept, along, {**scalars, **sums})
        return _checked_update(now, g, x, kept, along, {**scalars, **sums, **known, **some})

    given: list[tuple[tuple, str]] = [((entries,), dtype)] * 2 + [((), dtype)] * 2
    given += [(shape_of(slot, likes), slot.dtype or dtype) for slot in slots.values()]
    try_update(rule, take_step, [*given, *[((), dtype)] * len(changing)])


def _entries_kept(g: Any, x: Any, likes: Sequence[Like], every: int) -> dict[str, Any]:
    """Return the entries of g and x that slots with `every` keep, by their names in `t`."""
    ends = np.cumsum([math.prod(like.shape) for like in likes])
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    each = {SLICED_G: g, SLICED_X: x}
    if every == 1:
        return each
    return {name: ops.concatenate(sliced(one, ranges, every)) for name, one in each.items()}


def _seen(slots: Mapping[str, Any]) -> Any:
    return slots_type(slots)(**slots)


def _t(known: dict[str, Any]) -> Scalars:
    return Scalars(known, {}, False, _REFUSED)


def _checked_sums(
    rule: Any, g: Any, x: Any, slots: Mapping[str, Any], known: dict[str, Any]
) -> dict[str, Any]:
    """Return what `sums` does, or raise an error that says what it has to be."""
    with located(rule, "sums"):
        found = rule.sums(g, x, _seen(slots), _t(known))
    with defined(rule, "sums") as method:
        found = checked_scalars(rule, "sums", found, known)
        _check_tensors(method, found)
    return found


def _checked_known(
    rule: Any, slots: Mapping[str, Any], along: Mapping[str, int], known: dict[str, Any]
) -> dict[str, Any]:
    """Return the tensors that `solve` does, or raise an error that says what it has to return."""
    small = {name: value for name, value in slots.items() if name not in along}
    with located(rule, "solve"):
        result = rule.solve(_seen(small), _t(known))
    with defined(rule, "solve") as method:
        is_pair = isinstance(result, (tuple, list)) and len(result) == 2
        if not is_pair or not all(isinstance(one, dict) for one in result):
            raise TypeError(
                f"{method} must return two dictionaries, of tensors for `update` and of new values "
                f"of slots without entries. Received: {type(result).__name__}"
            )
        found, new = checked_scalars(rule, "solve", result[0]), result[1]
        _check_tensors(method, found)
        check_described(method, new, slots)
        _check_slots(method, new, small, "update")
    return found


def _checked_update(
    rule: Any,
    g: Any,
    x: Any,
    slots: Mapping[str, Any],
    along: Mapping[str, int],
    known: dict[str, Any],
) -> Any:
    """Return the new variables, or raise an error that says what `update` has to return."""
    with located(rule, "update"):
        result = rule.update(g, x, _seen(slots), _t(known))
    with defined(rule, "update") as method:
        new_x, new = check_result(method, result, x, dict(slots))
        check_shape(method, "the variable", new_x, x)
        check_dtype(method, "the variable", new_x, x)
        _check_slots(method, new, {name: slots[name] for name in along}, "solve")
    return new_x


def _check_tensors(method: str, found: dict[str, Any]) -> None:
    for name, value in found.items():
        if not hasattr(value, "shape"):
            raise TypeError(f"{method} must return {name} as a tensor. Received: {value!r}")


def _check_slots(method: str, new: dict[str, Any], own: Mapping[str, Any], other: str) -> None:
    """Raise an error for new slots that a method does not return, or of another shape or dtype."""
    for name, value in new.items():
        if value is None:
            continue
        if name not in own:
            raise KeyError(
                f"{method} returned the slot {name!r}, whose new value `{other}` has to return: "
                "`update` is called with pieces of all entries and returns slots that have "
                "entries, `solve` is called once and returns the others"
            )
        if isinstance(value, Rows):
            check_shape(method, f"the row of {name}", value.value, own[name][0])
            check_dtype(method, f"the row of {name}", value.value, own[name])
        else:
            check_shape(method, name, value, own[name])
            check_dtype(method, name, value, own[name])


class _Entries:
    """A rule that is called with eight entries, or with a half of them.

    Args:
        rule: The rule.
        like: The facts about a variable with these entries.
    """

    def __init__(self, rule: Any, like: Like):
        self.rule, self.like = rule, like
        self.slots: dict[str, Slot] = called(rule.slots, [like])
        self.along = steps_along(self.slots)
        lr, step = (ops.convert_to_tensor(number, like.dtype) for number in (0.1, 3.0))
        self.scalars = scalars_of(rule, lr, step, like.dtype)

    def given(self, end: float = 1.0) -> tuple[Any, Any, dict[str, Any]]:
        """Return gradient, variable and slots; the last entries are multiplied by `end`."""
        numbers = np.linspace(0.3, 0.9, 2 * HALF)
        entries = np.where(np.arange(2 * HALF) < HALF, numbers, end * numbers)
        g, x = (ops.convert_to_tensor(sign * entries, self.like.dtype) for sign in (-1.0, 1.0))
        return g, x, {name: self._slot(slot, entries) for name, slot in self.slots.items()}

    def _slot(self, slot: Slot, entries: np.ndarray) -> Any:
        dtype, shape = slot.dtype or self.like.dtype, shape_of(slot, [self.like])
        if "float" not in dtype:
            return ops.full(shape, 0, dtype)
        if None in slot.shape:
            values = np.broadcast_to(entries, shape)
        elif slot.initial == "identity":
            values = np.broadcast_to(np.eye(shape[-1]), shape)
        else:
            values = np.full(shape, slot.initial)
        return ops.convert_to_tensor(values, dtype)

    def sums(self, start: int = 0, end: int | None = None) -> dict[str, Any]:
        """Return what `sums` does for the entries from `start` to `end`."""
        g, x, slots = self.given()
        g, x = g[start:end], x[start:end]
        cut = {n: v[..., start:end] if n in self.along else v for n, v in slots.items()}
        return called(self.rule.sums, g, x, _seen(cut), self._t(g, x, {}))

    def known(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return the sums over all entries, and what `solve` makes of them."""
        slots = self.given()[2]
        small = {name: value for name, value in slots.items() if name not in self.along}
        return {**sums, **called(self.rule.solve, _seen(small), _t({**self.scalars, **sums}))[0]}

    def updated(self, known: dict[str, Any], end: float) -> dict[str, Any]:
        """Return the new variable, slots and rows of slots."""
        g, x, slots = self.given(end)
        new_x, new = called(self.rule.update, g, x, _seen(slots), self._t(g, x, known))
        found = {"the variable": new_x, **new}
        return {name: v.value if isinstance(v, Rows) else v for name, v in found.items()}

    def _t(self, g: Any, x: Any, known: dict[str, Any]) -> Scalars:
        return _t({**self.scalars, **known, SLICED_G: g, SLICED_X: x})


def _try_pieces(engine: Engine, likes: Sequence[Like]) -> None:
    """Raise an error if results depend on the pieces that a rule is called with."""
    dtype = widest([like.dtype for like in likes])
    with creating(), keras.StatelessScope():
        if not has_values():
            return
        entries = _Entries(
            engine.rule_now(dtype), likes[0]._replace(shape=(2 * HALF,), dtype=dtype)
        )
        if max(entries.along.values(), default=1) > 1:
            return
        name = type(entries.rule).__name__
        whole, first, second = entries.sums(), entries.sums(0, HALF), entries.sums(HALF)
        for one, value in whole.items():
            if not _equal(value, first[one] + second[one]):
                raise TypeError(
                    f"{name}.sums must return sums over entries: it may be called with pieces of "
                    f"all entries, and the results are added up. {one} of eight entries is not the "
                    "sum of those of the first and of the last four"
                )
        known = entries.known(whole)
        others = entries.updated(known, 7.0)
        for one, value in entries.updated(known, 1.0).items():
            if value is not None and not _equal(value[..., :HALF], others[one][..., :HALF]):
                raise TypeError(
                    f"{name}.update must compute each entry of {one} from the same entry of what "
                    "it is given, and from what `sums` and `solve` return: it may be called with "
                    "pieces of all entries"
                )


def _equal(a: Any, b: Any) -> bool:
    a, b = (ops.convert_to_numpy(ops.cast(one, "float64")) for one in (a, b))
    return np.allclose(a, b, 1e-3, 1e-6, equal_nan=True)
