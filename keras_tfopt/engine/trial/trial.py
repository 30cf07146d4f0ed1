"""Try a rule or hooks on shapes alone when an optimizer is built, before anything changes.

Compiled steps report errors in a formula in the words of each backend's compiler, and steps that
run operation by operation miss some errors. A trial finds them once, with the same message on each
backend.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import REFUSED, Over, Scalars, numbers_of, scalar
from keras_tfopt.engine.arguments.suggestions import nearest
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.building import generators_of
from keras_tfopt.engine.state.scopes import creating
from keras_tfopt.engine.state.state import HYPERPARAMETER, Like, Slot, Slots, slots_type
from keras_tfopt.engine.step.hooks import HOOKS
from keras_tfopt.engine.step.moving import OVER_ONE
from keras_tfopt.engine.step.results import (
    check_dtype,
    check_result,
    check_shape,
    check_truth,
    checked_before,
    checked_scalars,
    checked_slots,
)
from keras_tfopt.engine.trial.locations import defined, located

HALF = 4
"""The numbers in a half of the columns with which rules of entries are tried."""
# `t.norm`, `t.sum` and `t.mean` depend on all entries, as they may.
OVER_ANY = Over(*[lambda values: ops.full((), 0.7, values.dtype)] * 3)

if TYPE_CHECKING:
    from keras_tfopt.engine.engine import Engine
    from keras_tfopt.engine.wrapping import WrappingEngine


def check_rule(engine: Engine, likes: Sequence[Like]) -> None:
    """Raise an error if the rule cannot take a step on variables like these."""
    for like in _kinds(likes):
        _try(engine, like)
    for like in _columns(likes):
        with contextlib.suppress(CannotTry):
            _try_entries(engine, like)


def check_hooks(wrapper: WrappingEngine, likes: Sequence[Like]) -> None:
    """Raise an error if hooks of a wrapper return something else than they should.

    Some of what hooks raise themselves is left to the step: they may read what is not built yet.
    """
    if not wrapper.defines:
        _check_names(type(wrapper))
    with keras.StatelessScope():  # what a hook assigns must not stay
        reached = [one for one in likes if wrapper.reach(one) is not None]
        for like in _kinds(reached):
            _try_hooks(wrapper, like)
        for like in _columns(reached):
            with contextlib.suppress(CannotTry):
                _try_entries_of_hooks(wrapper, like)


def try_update(rule: Any, take_step: Callable, given: Sequence[tuple[tuple, str]]) -> None:
    """Call a step with tensors without values; raise an error if it has effects.

    Args:
        rule: The rule.
        take_step: Function that calls it.
        given: Shapes and data types of its arguments.
    """
    with keras.StatelessScope() as scope:
        if backend.run_on_shapes(take_step, given):
            raise in_place(f"{type(rule).__name__}.update")
    # On PyTorch, nothing is drawn where there are only shapes.
    if scope.state_mapping or generators_of(rule):
        raise assigns(rule)


def _kinds(likes: Sequence[Like]) -> list[Like]:
    """Return the first variable of each rank and data type."""
    kinds: dict[tuple[int, str], Like] = {}
    for like in likes:
        if 0 not in like.shape:
            kinds.setdefault((len(like.shape), like.dtype), like)
    return list(kinds.values())


def _columns(likes: Sequence[Like]) -> list[Like]:
    """Return a column of a few numbers in each data type of variables, for tries with values."""
    found: dict[str, Like] = {}
    for like in likes:
        if like.shape:
            column = (2 * HALF, *[1] * (len(like.shape) - 1))
            found.setdefault(like.dtype, like._replace(shape=column))
    return list(found.values())


def _given(like: Like, slots: dict[str, Slot]) -> list[tuple[tuple, str]]:
    """Return shapes and data types of a gradient, the variable, two scalars and the slots."""
    variable, scalar = (like.shape, like.dtype), ((), like.dtype)
    of_slots = [(tuple(slot.shape), slot.dtype or like.dtype) for slot in slots.values()]
    return [variable, variable, scalar, scalar, *of_slots]


def _try(engine: Engine, like: Like) -> None:
    rule, changing = engine.formula(), tuple(engine._changing)
    with located(rule, "slots"):
        slots = checked_slots(rule, rule.slots(like))
    slots_of = slots_type(slots)
    elements = engine.scope == "element"
    over = REFUSED if elements else OVER_ONE
    with located(rule, "facts"):
        facts = {} if elements else checked_scalars(rule, "facts", rule.facts_of(like))
        _check_hashable(rule, facts)

    def take_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> Any:
        kept, numbers = values[: len(slots)], values[len(slots) :]
        now = engine.formula(dict(zip(changing, numbers, strict=True)))
        t = Scalars(scalars_of(now, lr, number, like.dtype), facts, False, over)
        with located(rule, "update"):
            result = now.update(g, x, slots_of(*kept), t)
        old = dict(zip(slots, kept, strict=True))
        with defined(rule, "update") as method:
            new_x, new = check_result(method, result, x, old)
            for name, value in {"the variable": new_x, **new}.items():
                before = old.get(name, x)
                check_shape(method, name, value, before)
                check_dtype(method, name, value, before)
        return new_x

    try_update(rule, take_step, [*_given(like, slots), *[((), like.dtype)] * len(changing)])


def _try_hooks(wrapper: WrappingEngine, like: Like) -> None:
    slots = checked_slots(wrapper, wrapper.slots(like))
    facts = checked_scalars(wrapper, "facts", wrapper.facts(like))
    slots_of = slots_type(slots)
    has_rate = hasattr(wrapper.inner_optimizer, "learning_rate")
    name = type(wrapper).__name__

    def tried(owner: Any, method: str, *given: Any) -> Any:
        try:
            with located(owner, method):
                return getattr(owner, method)(*given)
        except Exception as error:
            if _is_mistake(owner, error.__cause__ or error):
                raise
            raise CannotTry from error

    def check(method: str, new: dict[str, Any], old: dict[str, Any]) -> None:
        for what, value in new.items():
            check_shape(f"{name}.{method}", what, value, old[what])
            check_dtype(f"{name}.{method}", what, value, old[what])

    def try_step(g: Any, x: Any, lr: Any, number: Any, *values: Any) -> None:
        found = tried(wrapper, "scalars", lr if has_rate else None, number)
        scalars = checked_scalars(wrapper, "scalars", found)
        known = {n: scalar(v, like.dtype) for n, v in scalars.items() if v is not None}
        numbers = numbers_of(number, like.dtype)
        t = Scalars({**known, "old": x, **numbers}, facts, False, OVER_ONE)
        s, seen = slots_of(*values), g if wrapper.needs_gradient else None
        hooks = wrapper.hooks_in({HYPERPARAMETER + name: lr for name in wrapper._changing})
        old = {"the gradient": g, "the variable": x, **s._asdict()}
        if "before" in wrapper.defines:
            result = tried(hooks, "before", seen, x, s, t)
            new_g, new_x, new = checked_before(wrapper, result, seen, x, s._asdict())
            check("before", {"the gradient": new_g, "the variable": new_x, **new}, old)
        if "accept" in wrapper.defines:
            check_truth(wrapper, "accept", tried(hooks, "accept", g, x, t))
        if "after" in wrapper.defines:
            result = tried(hooks, "after", seen, x, s, t)
            new_x, new = check_result(f"{name}.after", result, x, s._asdict())
            check("after", {"the variable": new_x, **new}, old)

    def take_step(g: Any, *given: Any) -> Any:
        with contextlib.suppress(CannotTry):
            try_step(g, *given)
        return g

    if backend.run_on_shapes(take_step, _given(like, slots)):
        raise in_place(f"A hook of {name}")


def _try_entries(engine: Engine, like: Like) -> None:
    """Raise an error if a rule of entries computes some from others.

    Real variables have been tried before. What fails for this shape alone is left to them.
    """
    elements = engine.scope_of(like) == "element"
    if not (elements or engine.flat or engine.elementwise):
        return
    with creating():
        rule = engine.rule_now(like.dtype)
    slots = called(rule.slots, like)
    facts = {} if engine.scope == "element" else called(rule.facts_of, like)

    def update(g: Any, x: Any, s: Any, lr: Any, step: Any) -> dict[str, Any]:
        t = Scalars(scalars_of(rule, lr, step, like.dtype), facts, False, OVER_ANY)
        new_x, new = called(rule.update, g, x, s, t)
        return {"the variable": new_x, **new}

    _check_entries(rule, "update", update, slots, like)


def _try_entries_of_hooks(wrapper: WrappingEngine, like: Like) -> None:
    """Raise an error if hooks of entries compute some from others."""
    if not (wrapper.scope == "element" or wrapper.flat):
        return
    with creating():
        hooks = wrapper.hooks_alone({n: wrapper.now(v) for n, v in wrapper._changing.items()})
    slots, facts = called(wrapper.slots, like), called(wrapper.facts, like)

    def given(x: Any, lr: Any, step: Any) -> Scalars:
        found = {n: v for n, v in called(hooks.scalars, lr, step).items() if v is not None}
        found |= {"old": x, **numbers_of(step, like.dtype)}
        return Scalars(found, facts, False, OVER_ANY)

    def before(g: Any, x: Any, s: Any, lr: Any, step: Any) -> dict[str, Any]:
        new_g, new_x, *rest = called(hooks.before, g, x, s, given(x, lr, step))
        return {"the gradient": new_g, "the variable": new_x, **(rest[0] if rest else {})}

    def after(g: Any, x: Any, s: Any, lr: Any, step: Any) -> dict[str, Any]:
        new_x, new = called(hooks.after, g, x, s, given(x, lr, step))
        return {"the variable": new_x, **new}

    for name, hook in {"before": before, "after": after}.items():
        if name in wrapper.defines:
            _check_entries(wrapper, name, hook, slots, like)


def _check_entries(
    owner: Any, method: str, call: Callable[..., dict], slots: dict[str, Slot], like: Like
) -> None:
    """Raise an error if the first half of a result changes with the second half of what is given.

    Args:
        owner: The rule or wrapper.
        method: The name of its method.
        call: The method: `(g, x, s, lr, step) -> results by name`.
        slots: The slots for a column with two halves.
        like: The facts about such a column.
    """
    with creating():
        if not has_values():
            return
    slots_of = slots_type(slots)
    numbers = np.linspace(0.3, 0.9, 2 * HALF)

    def results(end: float) -> dict[str, Any]:
        def tensor(sign: float, slot: Slot | None = None) -> Any:
            if slot is not None and slot.dtype is not None and "float" not in slot.dtype:
                return ops.full(slot.shape, slot.initial, slot.dtype)
            values = sign * np.where(np.arange(2 * HALF) < HALF, numbers, end * numbers)
            whole = slot is None or len(slot.shape)
            values = np.reshape(values, like.shape) if whole else values[0]
            return ops.convert_to_tensor(values, like.dtype)

        with creating(), keras.StatelessScope() as scope:
            given = slots_of(*[tensor(1.0, slot) for slot in slots.values()])
            lr, step = (ops.convert_to_tensor(number, like.dtype) for number in (0.1, 3.0))
            found = call(tensor(-1.0), tensor(1.0), given, lr, step)
            if method == "update" and scope.state_mapping:
                raise assigns(owner)
            return {name: _first_half(value) for name, value in found.items()}

    others = results(7.0)
    for name, value in results(1.0).items():
        if value is not None and not np.allclose(value, others[name], 1e-4, equal_nan=True):
            declared = 'scope = "element"' if owner.scope == "element" else "flat = True"
            raise TypeError(
                f"{type(owner).__name__}.{method} must compute each entry of {name} from the same "
                f"entry of what it is given, since its class has `{declared}`: a call may see "
                "several variables end to end, or a piece of one. For sums, means or maxima, use "
                '`scope = "variable"`'
            )


def has_values() -> bool:
    """Return whether tensors have values; within a graph of TensorFlow 1 they have none."""
    return backend.is_finite(ops.ones(())) is not None


def _first_half(value: Any) -> np.ndarray | None:
    if value is None:
        return None
    found = ops.convert_to_numpy(ops.cast(value, "float32"))
    return found[:HALF] if found.ndim else found


def scalars_of(rule: Any, lr: Any, step: Any, dtype: str) -> dict[str, Any]:
    """Return the scalars of a rule as tensors, as in a step."""
    with located(rule, "scalars"):
        found = checked_scalars(rule, "scalars", rule.scalars(lr, step))
    scalars = numbers_of(step, dtype)
    for name, value in found.items():
        try:
            scalars[name] = scalar(value, dtype)
        except (TypeError, ValueError):
            scalars[name] = None
        if scalars[name] is None or len(scalars[name].shape):
            raise TypeError(
                f"{type(rule).__name__}.scalars must give single numbers, or tensors without "
                f"dimensions. Received: {name}={value!r}"
            )
    return scalars


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


def assigns(rule: Any) -> TypeError:
    return TypeError(
        f"{type(rule).__name__}.update must not assign variables, nor draw numbers by a "
        "keras.random.SeedGenerator, which assigns its own: compiled steps would not do it. "
        "Keep what changes in `slots`, and return its new value. For noise, write a wrapper: its "
        "hooks may draw"
    )


def in_place(method: str) -> TypeError:
    return TypeError(
        f"{method} must not change what it is given, as `g += x` does with tensors of PyTorch: "
        "write `g = g + x`"
    )


def _check_names(cls: type) -> None:
    """Raise an error for a method whose name is nearly that of a hook, in a wrapper without any."""
    of_keras = dir(keras.optimizers.Optimizer)
    for name, value in vars(cls).items():
        if name.startswith("_") or name in of_keras or not inspect.isfunction(value):
            continue
        if near := nearest(name, HOOKS, 1):
            raise TypeError(
                f"{cls.__name__} has no hook, and a method {name!r}, which no step calls. Did you "
                f"mean {near[0]!r}?"
            )


def _is_mistake(owner: Any, error: Any) -> bool:
    """Return whether a hook would fail with this error in steps, too."""
    if isinstance(error, AttributeError):
        return error.obj is owner or isinstance(error.obj, (Scalars, Slots))
    return isinstance(error, NameError) or backend.asks_for_value(error)


class CannotTry(Exception):
    """A hook has raised an error of its own."""


def called(hook: Callable[..., Any], *given: Any) -> Any:
    try:
        return hook(*given)
    except Exception as error:
        raise CannotTry from error
