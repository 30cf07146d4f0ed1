"""Update variables with int8 slots on a CPU in parts that stay in the cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from keras_tfopt.engine.backends.jax.values import is_compiled_for_one_cpu
from keras_tfopt.engine.state.state import BLOCK, can_be_divided, names_of_scales

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

PART = 1 << 18  # numbers of a variable in one part


def is_in_parts(update: Update, g: Any, values: list[Any]) -> bool:
    """Return whether a variable can be updated in parts, and is faster so."""
    # In eager steps, JAX would trace the loop each time.
    return can_be_divided(update, values, update.mask) and is_compiled_for_one_cpu(g)


def update_in_parts(
    update: Update, g: Any, values: list[Any], scalars: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Return what `update.call` returns.

    Over a whole variable, XLA would decode slots once each for the variable, the codes and the
    scales, and would write codes with a single thread.
    """
    scales, shapes = names_of_scales(update.kind.stored), [value.shape for value in values]
    per_block = [False, *(name in scales for name in update.names)]
    run_apart = functools.partial(apart, scalars["step"])

    def update_part(start: Any, size: int, values: list[Any]) -> list[Any]:
        places = [
            (start // BLOCK, -(-size // BLOCK)) if is_scale else (start, size)
            for is_scale in per_block
        ]

        def step() -> list[Any]:
            old = [
                jax.lax.dynamic_slice_in_dim(value, *place)
                for value, place in zip(values, places, strict=True)
            ]
            part = jax.lax.dynamic_slice_in_dim(flat_g, start, size)
            x, slots = update.call(part, old[0], old[1:], scalars, apart=run_apart)
            return [x, *slots]

        return [
            value
            if new is None
            else jax.lax.dynamic_update_slice_in_dim(value, new.astype(value.dtype), place[0], 0)
            for value, new, place in zip(values, run_apart(step), places, strict=True)
        ]

    flat_g, flat = jnp.ravel(g), [jnp.ravel(value) for value in values]
    whole, rest = divmod(flat_g.size, PART)
    if whole:
        flat = jax.lax.fori_loop(0, whole, lambda n, now: update_part(n * PART, PART, now), flat)
    if rest:  # in a loop that runs once; outside of it, XLA would copy the arrays first
        once = (scalars["step"] >= 0).astype("int32")
        flat = jax.lax.fori_loop(0, once, lambda _, now: update_part(whole * PART, rest, now), flat)
    x, *slots = (value.reshape(shape) for value, shape in zip(flat, shapes, strict=True))
    return x, slots


def apart(step: Any, function: Callable[[], Any]) -> Any:
    """Return `function()` such that XLA stores it, and does not compute it again for each use.

    Args:
        step: Number of the step. It is never negative, but the compiler does not know that, and
            does not combine operations inside a condition with others.
        function: Function that returns a nest of arrays.
    """
    shapes = jax.eval_shape(function)

    def never() -> Any:
        return jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)

    return jax.lax.cond(step >= 0, function, never)
