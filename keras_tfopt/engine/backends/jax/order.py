"""Have XLA write large arrays in place on a CPU, by an order of computing.

`engine/write_order.py` says why order matters. Here an array is made to wait for others: it depends
on a number that is computed from them, and that is always zero. A rule that needs sums over the
variable waits for these in the same way: it is called for the sums first, apart from all else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core
import jax.numpy as jnp

from keras_tfopt.engine.backends.jax.parts import apart
from keras_tfopt.engine.hyperparameters import known_over, over_sums, sums_of
from keras_tfopt.engine.write_order import LARGE, waiting

if TYPE_CHECKING:
    from keras_tfopt.engine.moving import Update

ROWS, LANES = 8, 16
"""Shape of the blocks that XLA adds up in vector instructions. It does not for more rows."""


def _total(values: Any) -> Any:
    """Return a sum that XLA makes in the loop that computes the values, with all cores.

    A plain sum goes to YNNPACK, which takes the operations before it one by one.
    """

    def add(a: Any, b: Any) -> Any:
        return jnp.where(jnp.isnan(b), b, a + b)  # the sum, but not one that YNNPACK knows

    # XLA would store all values for those that are left, and adds up shorter types in float32.
    if values.size % (ROWS * LANES) or values.dtype not in ("float32", "float64"):
        return jnp.sum(values)
    blocks = jnp.reshape(values, (-1, ROWS, LANES))
    return jnp.sum(jax.lax.reduce(blocks, jnp.zeros((), values.dtype), add, (1,)))


OVER = over_sums(_total)


def update_in_order(
    update: Update, g: Any, values: list[Any], scalars: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Return what `update.call` returns, in an order in which XLA copies and keeps nothing."""
    step, call = scalars["step"], update.call
    if update.kind.flat and update.kind.scope != "element":
        sums = apart(
            step, lambda: sums_of(call, OVER, g, values[0], values[1:], scalars, update.mask)
        )
        if sums:
            g = jnp.where(_zero_of_all(sums) == 0, g, 0)
            call = functools.partial(call, over=known_over(sums))
    arguments = g, values[0], values[1:], scalars, update.mask
    program, form = jax.make_jaxpr(call, return_shape=True)(*arguments)
    results = jax.extend.core.jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
    x, slots = jax.tree.unflatten(jax.tree.structure(form), results)
    new = [x, *slots]
    places = [n for n, value in enumerate(values) if new[n] is not None]
    outputs = dict(zip(places, program.jaxpr.outvars, strict=True))
    places = [n for n in places if values[n].size > LARGE]
    made_by = {out: equation for equation in program.jaxpr.eqns for out in equation.outvars}

    def parents(node: Any) -> list[Any]:
        inputs = made_by[node].invars if node in made_by else ()
        return [one for one in inputs if isinstance(one, jax.extend.core.Var)]

    old = [program.jaxpr.invars[1 + n] for n in places]
    for j, others in waiting(old, [outputs[n] for n in places], parents):
        place = places[j]
        zero = zero_after(step, [new[places[i]] for i in others])
        new[place] = jnp.where(zero == 0, new[place], values[place].astype(new[place].dtype))
    return new[0], new[1:]


def zero_after(step: Any, values: Sequence[Any]) -> Any:
    """Return a zero that is known only when all values are.

    A variable that others are computed from is updated where it is only if these must come first.
    The compiler sees no order but that of results used. It would compute a single entry apart, but
    does not look through a condition.

    Args:
        step: Number of the step. The compiler does not know that it is never negative.
        values: Arrays.
    """

    def entries() -> list[Any]:
        return [jnp.ravel(value)[0] for value in values]

    return _zero_of_all(apart(step, entries))


def _zero_of_all(numbers: Sequence[Any]) -> Any:
    """Return a zero that is known only when all numbers are."""
    numbers = [jnp.asarray(number, "float32") for number in numbers]
    return _zero_of(sum(jax.lax.bitcast_convert_type(number, "int32") for number in numbers))


def _zero_of(number: Any) -> Any:
    """Return a zero that the compiler does not know: of two consecutive integers, one is even."""
    number = jnp.int32(number)
    return (number * (number + 1)) & 1
