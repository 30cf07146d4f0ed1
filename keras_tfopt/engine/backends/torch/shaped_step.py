"""Compile the step of a rule over variables of one shape, or over rows of one shape, in place.

This is for what cannot lie end to end as in `flat_step.py`: variables of rules that see rows and
columns, as Adafactor, and rows whose slots are kept in fewer bytes. Formulas may decide by sizes,
so that code is compiled for each shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.engine.backends.torch.buckets import can_be_compiled
from keras_tfopt.engine.backends.torch.compile import Compiled
from keras_tfopt.engine.backends.torch.private import replace_all
from keras_tfopt.engine.backends.torch.values import write_all
from keras_tfopt.engine.state.state import Stored, has_codes
from keras_tfopt.engine.step.shared_code import Shared

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

Step = Callable[[Any, Any, list, dict[str, Any]], None]

FEW = 1 << 11  # elements; operation by operation, an update of fewer takes as long
WORTH = 1 << 14  # elements of all variables of a shape that pay for compiling, each FEW at least
SHAPES = 40  # for which the code of an optimizer is compiled at most

_compiled = Shared()


def shaped_steps(engine: Any, updates: list[Update]) -> dict[int, Step]:
    """Return compiled steps by the places of variables; the others are not worth it."""
    if not engine.fused or engine.stacked:
        return {}
    whole = [update for update in updates if _is_whole(update)]
    if not whole:
        return {}
    key = ("shapes", tuple([update.index for update in whole]))
    if key not in engine._fast:
        engine._fast[key] = _chosen(engine, whole)
    return engine._fast[key]


def run_shaped(step: Step, update: Update, scalars: dict[str, Any]) -> bool:
    """Make a step in place; return False if memory is not as compiled code wants it."""
    value = update.variable._value
    x, *slots = (one.detach() for one in (value, *(slot._value for slot in update.slots)))
    if not all(one.is_contiguous() for one in (x, *slots)):
        return False
    step(update.gradient.contiguous(), x, slots, scalars)
    torch.autograd.graph.increment_version([value])
    return True


def _is_whole(update: Update) -> bool:
    return not (update.kind.flat or update.kind.stored) and can_be_compiled(update)


def _chosen(engine: Any, updates: list[Update]) -> dict[int, Step]:
    alike: dict[tuple, list[Update]] = {}
    for update in updates:
        value = update.variable._value
        key = (update.kind, update.names, update.like.shape, value.dtype, value.device.type)
        alike.setdefault(key, []).append(update)
    sizes = {k: len(found) * max(FEW, math.prod(k[2])) for k, found in alike.items()}
    worth = sorted((k for k, size in sizes.items() if size >= WORTH), key=lambda k: -sizes[k])
    steps = {}
    for key in worth[:SHAPES]:
        first = alike[key][0]
        rule, changing = engine.rule_to_share(first.kind.rule)
        make = functools.partial(_compile, first.call)
        step = _compiled.find(engine, rule, changing, key, make)
        steps.update({update.index: step for update in alike[key]})
    return steps


def row_step(engine: Any, update: Update) -> Step:
    """Return the step over touched rows with their slots, for any number of rows but one."""
    value = update.variable._value
    shape = update.like.shape[1:]
    key = ("rows", update.kind, update.names, shape, value.dtype, value.device.type)
    if key not in engine._fast:
        rule, changing = engine.rule_to_share(update.kind.rule)
        make = functools.partial(_compile, update.call, _with_many_rows, update.kind.stored)
        engine._fast[key] = _compiled.find(engine, rule, changing, key, make)
    return engine._fast[key]


def _with_many_rows(*given: Any) -> tuple:
    return replace_all(
        torch.Tensor, lambda one: one.new_empty(5000, *one.shape[1:]) if one.ndim else one, given
    )


def _compile(
    call: Callable[..., tuple[Any, list[Any]]],
    examples: Callable[..., tuple] | None = None,
    stored: tuple[Stored, ...] = (),
) -> Step:
    def step(g: Any, x: Any, slots: list, scalars: dict[str, Any]) -> None:
        y, changed = call(g, x, slots, scalars)
        write_all([x, *slots], [y, *changed])

    with_codes = has_codes(stored)
    return Compiled(
        step,
        examples or (lambda *given: given),
        recomputes=examples is None,
        has_bits=bool(stored) and not with_codes,
        contracts=with_codes,
        for_all_sizes=examples is not None,
        may_stay=True,
    )
