"""Have XLA write large arrays in place on a CPU, by an order of computing.

`write_order.py` says why order matters. Here an array is made to wait for others: what it is
computed from depends on a number that is computed from them, and that is always zero. A rule that
needs sums over the variable waits for these in the same way: it is called for the sums first, apart
from all else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core
import jax.numpy as jnp

from keras_tfopt.engine.arguments.hyperparameters import known_over, over_sums, sums_of
from keras_tfopt.engine.backends.jax.parts import apart
from keras_tfopt.engine.backends.write_order import LARGE, in_order
from keras_tfopt.engine.state.state import has_codes

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

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
    if has_codes(update.kind.stored):  # codes and scales need a pass over the same values
        return call(g, values[0], values[1:], scalars, update.mask)
    return _in_order(step, call, g, values, (scalars, update.mask))


def _in_order(
    step: Any, call: Callable, g: Any, values: list[Any], more: tuple
) -> tuple[Any, list[Any]]:
    """Return the results of a function of a gradient, a variable, its slots and further arguments.

    Each is computed by operations of its own, in the order of `in_order`.
    """
    arguments = g, values[0], values[1:], *more
    program, form = jax.make_jaxpr(call, return_shape=True)(*arguments)
    if program.effects:  # as those of `jax.debug.print`, which must not happen several times
        return call(*arguments)
    nodes, given = program.jaxpr.outvars, jax.tree.leaves(arguments)
    x, slots = jax.tree.unflatten(jax.tree.structure(form), range(len(nodes)))
    numbers = [x, *slots]  # of the nodes; None for slots that stay as they are
    large = [n for n, m in enumerate(numbers) if m is not None and values[n].size > LARGE]
    made_by = {out: equation for equation in program.eqns for out in equation.outvars}

    def parents(node: Any) -> list[Any]:
        operands = made_by[node].invars if node in made_by else ()
        return [one for one in operands if isinstance(one, jax.extend.core.Var)]

    old = [program.jaxpr.invars[1 + n] for n in large]
    written: list[Any] = []  # nodes
    known: tuple[list[Any], list[Any]] = given, []  # values of the arguments and of these nodes
    results: dict[int, Any] = {}
    for j, others in in_order(old, [nodes[numbers[n]] for n in large], parents):
        number, now = numbers[large[j]], known
        if others:
            zero = zero_after(step, [results[large[i]] for i in others])
            now = jax.tree.map(functools.partial(_known_with, zero), known)
        results[large[j]] = _run(program, *now, written)[number]
        written.append(nodes[number])
        known[1].append(results[large[j]])
    if rest := [n for n, m in enumerate(numbers) if m is not None and n not in results]:
        found = _run(program, *known, written)
        results |= {n: found[numbers[n]] for n in rest}
    return results[0], [results.get(n) for n in range(1, len(numbers))]


def _known_with(zero: Any, value: Any) -> Any:
    """Return a value; a large one is known only when a zero is."""
    is_large = jnp.size(value) > LARGE
    return jnp.where(zero == 0, value, jnp.zeros_like(value)) if is_large else value


def _run(program: Any, given: list[Any], values: list[Any], nodes: list[Any]) -> list[Any]:
    """Return the results of a program, in which some nodes have values that are known."""
    equations = [one for one in program.eqns if not {*nodes} >= {*one.outvars}]
    constants = [*program.jaxpr.constvars, *nodes]
    shorter = program.jaxpr.replace(constvars=constants, eqns=equations)
    known = program.replace(jaxpr=shorter, consts=[*program.consts, *values])
    return jax.extend.core.jaxpr_as_fun(known)(*given)


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
        # Flat, these would be other values to XLA. It would compute them once more.
        return [value[(0,) * value.ndim] for value in values]

    return _zero_of_all(apart(step, entries))


def _zero_of_all(numbers: Sequence[Any]) -> Any:
    """Return a zero that XLA knows only when all numbers are: of two integers, one is even."""
    numbers = [jnp.asarray(number, "float32") for number in numbers]
    total = jnp.int32(sum(jax.lax.bitcast_convert_type(number, "int32") for number in numbers))
    return (total * (total + 1)) & 1
