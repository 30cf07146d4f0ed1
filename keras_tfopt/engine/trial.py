"""Try a rule or hooks on shapes alone when an optimizer is built, before anything changes.

Compiled steps report errors in a formula in the words of each backend's compiler, and steps that
run operation by operation miss some errors. A trial finds them once, with the same message on each
backend.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.hyperparameters import REFUSED, Scalars
from keras_tfopt.engine.moving import over_one
from keras_tfopt.engine.results import (
    check_accepted,
    check_result,
    checked_before,
    checked_scalars,
    checked_slots,
)
from keras_tfopt.engine.state import HYPERPARAMETER, Like, Rows, Slot

if TYPE_CHECKING:
    from keras_tfopt.engine.engine import Engine
    from keras_tfopt.engine.wrapping import WrappingEngine


def check_rule(engine: Engine, likes: Sequence[Like]) -> None:
    """Raise an error if the rule cannot take a step on variables like these."""
    if engine.scope != "model":
        for like in _kinds(likes):
            _try(engine, like)


def check_hooks(wrapper: WrappingEngine, likes: Sequence[Like]) -> None:
    """Raise an error if hooks of a wrapper return something else than they should.

    What hooks raise themselves is left to the step: they may read what is not built yet.
    """
    with keras.StatelessScope():  # what a hook assigns must not stay
        for like in _kinds([one for one in likes if wrapper.reach(one) is not None]):
            _try_hooks(wrapper, like)


def _kinds(likes: Sequence[Like]) -> list[Like]:
    """Return the first variable of each rank and data type."""
    kinds: dict[tuple[int, str], Like] = {}
    for like in likes:
        if 0 not in like.shape:
            kinds.setdefault((len(like.shape), like.dtype), like)
    return list(kinds.values())


def _given(like: Like, slots: dict[str, Slot]) -> list[tuple[tuple, str]]:
    """Return shapes and data types of a gradient, the variable, two scalars and the slots."""
    variable, scalar = (like.shape, like.dtype), ((), like.dtype)
    of_slots = [(tuple(slot.shape), slot.dtype or like.dtype) for slot in slots.values()]
    return [variable, variable, scalar, scalar, *of_slots]


def _try(engine: Engine, like: Like) -> None:
    rule, changing = engine.formula(), tuple(engine._changing)
    with _located(rule, "slots"):
        slots = checked_slots(rule, rule.slots(like))
    slots_of = collections.namedtuple("Slots", slots)  # type: ignore[misc]
    elements = engine.scope == "element"
    with _located(rule, "facts"):
        facts = {} if elements else checked_scalars(rule, "facts", rule.facts_of(like))
        _check_hashable(rule, facts)

    def take_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> Any:
        kept, numbers = values[: len(slots)], values[len(slots) :]
        now = engine.formula(dict(zip(changing, numbers, strict=True)))
        with _located(rule, "scalars"):
            scalars = checked_scalars(rule, "scalars", now.scalars(lr, number))
        scalars["step"] = number
        t = Scalars(scalars, facts, False, REFUSED if elements else over_one())
        with _located(rule, "update"):
            result = now.update(g, x, slots_of(*kept), t)
        old = dict(zip(slots, kept, strict=True))
        method = f"{type(rule).__name__}.update"
        new_x, new = check_result(method, result, x, old)
        for name, value in {"the variable": new_x, **new}.items():
            before = old.get(name, x)
            others = [one for one in (x, *kept) if one is not before]
            engine.returns_given |= any(value is one for one in others)
            _check_shape(method, name, value, before)
            _check_dtype(method, name, value, before)
        return new_x

    given = [*_given(like, slots), *[((), like.dtype)] * len(changing)]
    with keras.StatelessScope() as scope:
        if backend.run_on_shapes(take_step, given):
            raise _in_place(f"{type(rule).__name__}.update")
    # On PyTorch, nothing is drawn where there are only shapes.
    draws = any(isinstance(value, keras.random.SeedGenerator) for value in vars(rule).values())
    if scope.state_mapping or draws:
        raise TypeError(
            f"{type(rule).__name__}.update must not assign variables, nor draw numbers by a "
            "keras.random.SeedGenerator, which assigns its own: compiled steps would not do it. "
            "Keep what changes in `slots`, and return its new value"
        )


def _try_hooks(wrapper: WrappingEngine, like: Like) -> None:
    slots = checked_slots(wrapper, wrapper.slots(like))
    facts = checked_scalars(wrapper, "facts", wrapper.facts(like))
    slots_of = collections.namedtuple("Slots", slots)  # type: ignore[misc]
    has_rate = hasattr(wrapper.inner_optimizer, "learning_rate")
    name = type(wrapper).__name__

    def try_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> None:
        found = _called(wrapper.scalars, lr if has_rate else None, number)
        scalars = checked_scalars(wrapper, "scalars", found)
        known = {name: value for name, value in scalars.items() if value is not None}
        t = Scalars({**known, "old": x, "step": number}, facts, False, over_one())
        s, seen = slots_of(*values), g if wrapper.needs_gradient else None
        hooks = wrapper.hooks_in({HYPERPARAMETER + name: lr for name in wrapper._changing})
        if "before" in wrapper.defines:
            result = _called(hooks.before, seen, x, s, t)
            new_g, new_x, new = checked_before(wrapper, result, seen, x, s._asdict())
            old = {"the gradient": g, "the variable": x, **s._asdict()}
            for what, value in {"the gradient": new_g, "the variable": new_x, **new}.items():
                _check_shape(f"{name}.before", what, value, old[what])
        if "accept" in wrapper.defines:
            check_accepted(wrapper, _called(hooks.accept, g, x, t))
        if "after" in wrapper.defines:
            result = _called(hooks.after, seen, x, s, t)
            old = {"the variable": x, **s._asdict()}
            new_x, new = check_result(f"{name}.after", result, x, s._asdict())
            for what, value in {"the variable": new_x, **new}.items():
                _check_shape(f"{name}.after", what, value, old[what])

    def take_step(g: Any, *given: Any) -> Any:
        with contextlib.suppress(_CannotTry):
            try_step(g, *given)
        return g

    if backend.run_on_shapes(take_step, _given(like, slots)):
        raise _in_place(f"A hook of {name}")


def _check_hashable(rule: Any, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        try:
            hash(value)
        except TypeError:
            message = (
                f"{type(rule).__name__}.facts must give values that can be hashed, such as tuples "
                f"instead of lists: variables of equal facts share code. Received: {name}={value!r}"
            )
            raise TypeError(message) from None


def _in_place(method: str) -> TypeError:
    return TypeError(
        f"{method} must not change what it is given, as `g += x` does with tensors of PyTorch: "
        "write `g = g + x`"
    )


class _CannotTry(Exception):
    """A hook has raised an error of its own."""


def _called(hook: Callable[..., Any], *given: Any) -> Any:
    try:
        return hook(*given)
    except Exception as error:
        raise _CannotTry from error


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


def _check_shape(method: str, name: str, value: Any, old: Any) -> None:
    if isinstance(value, Rows) or (value is None and name != "the variable"):
        return
    if not hasattr(value, "shape"):
        raise TypeError(f"{method} must return {name} as a tensor. Received: {value!r}")
    found, wanted = tuple(value.shape), tuple(old.shape)
    if found != wanted:
        raise ValueError(f"{method} must return {name} in its shape {wanted}. Received: {found}")


def _check_dtype(method: str, name: str, value: Any, old: Any) -> None:
    if not hasattr(value, "dtype"):
        return
    dtype, kept = map(keras.backend.standardize_dtype, (value.dtype, old.dtype))
    if dtype != kept:
        raise TypeError(
            f"{method} must return {name} in its data type, {kept}: convert it by "
            f'`keras.ops.cast(value, "{kept}")`. Received: {dtype}'
        )
