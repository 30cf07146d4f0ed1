"""Run the steps of rules on PyTorch: compiled over buckets of variables, or on rows."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from keras_tfopt.engine.backends import defaults
from keras_tfopt.engine.backends.defaults import read
from keras_tfopt.engine.backends.torch import buckets
from keras_tfopt.engine.backends.torch.compile import Compiled
from keras_tfopt.engine.backends.torch.flat_step import flat_step
from keras_tfopt.engine.backends.torch.rows import nonzero
from keras_tfopt.engine.backends.torch.shaped_step import row_step, run_shaped, shaped_steps
from keras_tfopt.engine.backends.torch.values import DTYPES, commit, is_on_gpu
from keras_tfopt.engine.keras_private import get_stateless_scope
from keras_tfopt.engine.settings import in_plain
from keras_tfopt.engine.state.scopes import in_scope
from keras_tfopt.engine.step.shared_code import Shared, identity

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.state.state import Like
    from keras_tfopt.engine.step.moving import Update

# Rows are updated in pieces of this many numbers, which stay in the cache with what the rule
# computes from them.
PIECE = 1 << 17

COMPILES_SCALARS = False  # also on a processor, where operations on numbers take less than a call

_compiled = Shared()


def is_ready(gradient: Any, variable: Any, like: Like, casts: bool) -> bool:
    # The checks that this spares take longer than the update of a small variable.
    return (
        type(gradient) is torch.Tensor
        and (
            gradient.dtype is DTYPES[like.dtype]
            or casts
            and gradient.dtype is variable._value.dtype
        )
        and gradient.shape == like.shape
        and gradient.layout is torch.strided
        and gradient.get_device() == variable._value.get_device()
    )


def execute(engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]) -> None:
    # Values of a scope belong to the caller, and must not move to flat memory.
    in_a_scope = get_stateless_scope() is not None and in_scope()
    compiles = not (in_a_scope or in_plain.get())
    if compiles:
        updates = buckets.run_fused(engine, updates, scalars)
    if engine._state.has_half:
        updates = [_with_cast_gradient(update) for update in updates]
    steps = shaped_steps(engine, updates) if compiles and updates else {}
    for update in updates:
        known = update.scalars_in(scalars)
        if update.kind.mode in ("rows", "touched"):
            _update_rows(engine, update, known, compiles)
            continue
        step = steps.get(update.index)
        if step is not None and run_shaped(step, update, known):
            continue
        values = [update.variable.value, *(slot.value for slot in update.slots)]
        x, slots = update.call(update.gradient, values[0], values[1:], known, update.mask)
        commit(update.writes([x, *slots]))


def compute_scalars(
    engine: Any, attributes: Mapping[str, Any], function: Callable, given: tuple
) -> dict[str, Any]:
    pays = COMPILES_SCALARS or is_on_gpu(engine._iterations._value)
    if not pays or in_plain.get() or get_stateless_scope() is not None:
        return defaults.compute_scalars(engine, attributes, function, given)
    kinds = tuple([("rank", g.ndim) if isinstance(g, torch.Tensor) else g for g in given])
    key = ("scalars", identity(attributes), kinds)
    if key not in engine._fast:
        rule = engine.with_attributes(attributes)
        make = functools.partial(Compiled, functools.partial(function, rule), lambda *given: given)
        engine._fast[key] = _compiled.find(engine, rule, (), kinds, make)
    return engine._fast[key](*given)


def run_if(engine: Any, condition: Any, step: Callable[[], None]) -> None:
    if bool(condition):
        step()


def run_in_place(
    engine: Any, key: Any, function: Callable, variables: Sequence[Any], inputs: Any
) -> Any:
    result, writes = function([read(v) for v in variables], inputs)
    commit([(variables[n], indices, value) for n, indices, value in writes])
    return result


def _with_cast_gradient(update: Update) -> Update:
    """Return an update whose gradient has the dtype of the arithmetic."""
    g, dtype = update.gradient, DTYPES[update.kind.dtype]
    if not isinstance(g, torch.Tensor) or g.dtype is dtype:
        return update
    return dataclasses.replace(update, gradient=g.to(dtype))


def _update_rows(engine: Any, update: Update, scalars: dict[str, Any], compiles: bool) -> None:
    if update.kind.mode == "rows":
        indices, g = update.gradient.indices, update.gradient.values
        if not update.kind.named:
            touched = nonzero(g)
            indices, g = indices[touched], g[touched]
    else:
        touched = nonzero(update.gradient)
        if update.mask is not None:
            touched = touched | update.mask
        indices = touched.nonzero().squeeze(1)
        g = update.gradient.index_select(0, indices)
    if indices.numel() == 0 and all(update.cut):
        return  # otherwise, a slot that belongs to all rows may change
    values = [update.variable.value, *(slot.value for slot in update.slots)]
    most, of_elements = max(1, indices.numel()), update.kind.scope == "element"
    if of_elements and not is_on_gpu(g):
        most = max(1, PIECE // max(1, math.prod(g.shape[1:])))
    step = None
    if compiles and of_elements and all(update.cut) and buckets.keeps_roundings(update):
        step = row_step(engine, update) if update.kind.stored else _over_flat_rows(engine, update)
    for rows, part in zip(indices.split(most), g.split(most), strict=True):
        old = [v.index_select(0, rows) if c else v for v, c in zip(values, update.cut, strict=True)]
        # Sizes 0 and 1 would be compiled apart, which is not worth it.
        if step is None or rows.numel() < 2 or part.numel() == 0:
            x, slots = update.call(part, old[0], old[1:], scalars)
            new = [x, *slots]
        else:
            step(part.contiguous(), old[0], old[1:], scalars)
            new = old  # which the step has changed
        commit(update.writes(new, [rows if c else None for c in update.cut]))


def _over_flat_rows(engine: Any, update: Update) -> Callable[..., None]:
    step, _ = flat_step(engine, update)

    def run(g: Any, x: Any, slots: list[Any], scalars: dict[str, Any]) -> None:
        x, *slots = (one.view(-1) for one in (x, *slots))
        step(g.reshape(-1), x, slots, None, scalars)

    return run
