"""Try a rule on shapes alone when its optimizer is built, before anything changes.

Compiled steps report errors in a formula in the words of each backend's compiler, and steps that
run operation by operation miss some errors. A trial finds them once, with the same message on each
backend.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.hyperparameters import REFUSED, Scalars
from keras_tfopt.engine.moving import over_one
from keras_tfopt.engine.results import check_result
from keras_tfopt.engine.state import Like, Slot

if TYPE_CHECKING:
    from keras_tfopt.engine.engine import Engine


def check_rule(engine: Engine, likes: Sequence[Like]) -> None:
    """Raise an error if the rule cannot take a step on variables like these."""
    if engine.scope == "model":
        return
    tried = set()
    for like in likes:
        kind = len(like.shape), like.dtype
        if kind not in tried and 0 not in like.shape:
            tried.add(kind)
            _try(engine, like)


def _try(engine: Engine, like: Like) -> None:
    rule, changing = engine.formula(), tuple(engine._changing)
    with _located(rule, "slots"):
        slots = rule.slots(like)
    if any(not isinstance(slot, Slot) for slot in slots.values()):
        return  # building says so
    slots_of = collections.namedtuple("Slots", slots)  # type: ignore[misc]
    elements = engine.scope == "element"
    facts = {} if elements else rule.facts_of(like)

    def take_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> Any:
        kept, numbers = values[: len(slots)], values[len(slots) :]
        now = engine.formula(dict(zip(changing, numbers, strict=True)))
        with _located(rule, "scalars"):
            scalars = {**now.scalars(lr, number), "step": number}
        t = Scalars(scalars, facts, False, REFUSED if elements else over_one())
        with _located(rule, "update"):
            result = now.update(g, x, slots_of(*kept), t)
        old = dict(zip(slots, kept, strict=True))
        new_x, new = check_result(type(rule).__name__, result, x, old)
        for name, value in {"the variable": new_x, **new}.items():
            before = old.get(name, x)
            others = [one for one in (x, *kept) if one is not before]
            engine.returns_given |= any(value is one for one in others)
            _check_like(type(rule).__name__, name, value, before)
        return new_x

    variable, scalar = (like.shape, like.dtype), ((), like.dtype)
    of_slots = [(tuple(slot.shape), slot.dtype or like.dtype) for slot in slots.values()]
    given = [variable, variable, scalar, scalar, *of_slots, *[scalar] * len(changing)]
    backend.run_on_shapes(take_step, given)


@contextlib.contextmanager
def _located(rule: Any, method: str) -> Iterator[None]:
    """Add to an error the line of the rule that raised it, and what to write instead."""
    try:
        yield
    except Exception as error:
        cls = type(rule)
        parts = ("builtins", "keras", "keras_tfopt")
        users = [c for c in cls.__mro__ if c.__module__.split(".")[0] not in parts]
        files = {inspect.getsourcefile(c) for c in users}
        lines = [f for f in traceback.extract_tb(error.__traceback__)[1:] if f.filename in files]
        where = f"{lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}" if lines else ""
        name = f"{cls.__name__}.{method}"
        if backend.asks_for_value(error):
            raise TypeError(
                f"{name} asks for the value of a tensor, as `if`, `while`, `bool`, `float` and "
                "NumPy do. Compiled steps have no values yet: use operations of `keras.ops`, and "
                f"`ops.where(condition, a, b)` instead of `if`. {where}"
            ) from error
        if lines and type(error) in (AttributeError, KeyError, NameError, TypeError, ValueError):
            raise type(error)(f"{name}: {error.args[0] if error.args else ''} {where}") from error
        raise


def _check_like(rule: str, name: str, value: Any, old: Any) -> None:
    if not hasattr(value, "shape"):  # a number, or one row of a slot
        return
    found, wanted = tuple(value.shape), tuple(old.shape)
    if found != wanted:
        raise ValueError(
            f"{rule}.update must return {name} in its shape {wanted}. Received: {found}"
        )
    dtype, kept = map(keras.backend.standardize_dtype, (value.dtype, old.dtype))
    if dtype != kept:
        raise TypeError(
            f"{rule}.update must return {name} in its data type, {kept}: convert it by "
            f'`keras.ops.cast(value, "{kept}")`. Received: {dtype}'
        )
