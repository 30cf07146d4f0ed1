"""Compute gradients of a loss on JAX: values of variables become arguments of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.scopes import Given, in_scope, is_trainable


def is_tracing() -> bool:
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def check_traceable(verb: str, assigns: bool = True) -> None:
    if assigns and is_tracing() and not in_scope():
        raise RuntimeError(
            f"`{verb}` assigns variables, which jax.jit cannot see. Call it outside of jax.jit, "
            "with `compiled=True` to have the step compiled; or put it under "
            "`keras.StatelessScope(state_mapping)`, with the values of all variables as arguments "
            "of the compiled function and its results taken from the scope"
        )


def loss_and_gradients(
    loss: Callable[[], Any],
    variables: Sequence[Any] | None,
    seed: Callable[[Any], Any] | None,
    likely: Sequence[Any],
    by_rows: bool = False,
) -> tuple[Any, list[Any], list[Any]]:
    given = (likely or _read(loss)) if variables is None else variables
    done = _differentiate(loss, given, seed, by_rows)
    if variables is None:
        # JAX differentiates by arguments only, and the loss must run to show which variables it
        # reads. If it reads others than those given, it runs again.
        while any(id(variable) not in done.gradients for variable in done.read):
            done = _differentiate(loss, done.read, seed, by_rows)
        variables = done.read
    if done.assigned:
        check_traceable("compute_gradients")
    for variable, value in done.assigned:
        variable.assign(value)
    return done.loss, [done.gradients[id(variable)] for variable in variables], list(variables)


def _read(loss: Callable[[], Any]) -> list[Any]:
    with Given() as scope:
        jax.eval_shape(loss)
    return _trainable(scope)


def _trainable(scope: Given) -> list[Any]:
    return [variable for variable in scope.read.values() if is_trainable(variable)]


class _Differentiated(NamedTuple):
    loss: Any
    gradients: dict[int, Any]  # by identity of variables; None if the loss does not depend on it
    read: list[Any]  # trainable variables
    assigned: list[tuple[Any, Any]]  # variables and their new values


def _differentiate(
    loss: Callable[[], Any],
    variables: Sequence[Any],
    seed: Callable[[Any], Any] | None,
    by_rows: bool,
) -> _Differentiated:
    scopes = []

    def of_values(values: list[Any]) -> Any:
        with Given(variables, values) as scope:
            result = loss()
        scopes.append(scope)
        return result, scope.new_values()

    given = [variable.value for variable in variables]
    result, pull_back, new = jax.vjp(of_values, given, has_aux=True)
    # JAX returns zeros for an argument on which the loss does not depend. Only the trace of the
    # backward pass tells these from computed zeros.
    weight = jnp.ones_like(result) if seed is None else seed(result)
    trace = jax.make_jaxpr(pull_back)(weight)
    values = jax.extend.core.jaxpr_as_fun(trace)(weight)
    makers = _makers(trace.jaxpr)
    known = dict(zip(map(id, trace.jaxpr.constvars), trace.consts, strict=True))
    gradients = {}
    for variable, value, output in zip(variables, values, trace.jaxpr.outvars, strict=True):
        indices = _looked_up(output, makers) if by_rows else None
        if _is_zero(output, makers):
            value = None
        elif indices and all(id(one) in known for one in indices):
            value = _of_rows(value, [known[id(one)] for one in indices])
        gradients[id(variable)] = value
    scope = scopes[0]
    assigned = list(zip(scope.written.values(), new, strict=True))
    return _Differentiated(result, gradients, _trainable(scope), assigned)


Makers = dict[int, tuple[Any, int]]


def _makers(jaxpr: Any) -> Makers:
    """Return the equation that computes each variable of a trace, and its place in the outputs."""
    return {id(out): (one, place) for one in jaxpr.eqns for place, out in enumerate(one.outvars)}


def _is_zero(variable: Any, makers: Makers) -> bool:
    """Return whether an output of a trace is the constant zero."""
    if isinstance(variable, jax.extend.core.Literal):
        return not np.any(variable.val)
    equation, _ = makers.get(id(variable), (None, 0))
    is_filled = equation is not None and equation.primitive.name == "broadcast_in_dim"
    return is_filled and _is_zero(equation.invars[0], {})


def _looked_up(variable: Any, makers: Makers) -> list[Any] | None:
    """Return the indices of the lookups that a gradient comes from; None if not only from lookups.

    The backward pass of a lookup adds rows to zeros. Gradients of several lookups are summed.
    """
    if id(variable) not in makers:
        return None
    if _is_zero(variable, makers):
        return []
    equation, place = makers[id(variable)]
    name = equation.primitive.name
    if name == "add_any":
        parts = [_looked_up(one, makers) for one in equation.invars]
        return None if None in parts else [i for part in parts for i in part or ()]
    if name == "scatter-add" and _adds_rows(equation):
        rest = _looked_up(equation.invars[0], makers)
        return None if rest is None else [*rest, equation.invars[1]]
    if name in ("jit", "pjit"):
        inner = equation.params["jaxpr"].jaxpr
        found = _looked_up(inner.outvars[place], _makers(inner))
        outside = dict(zip(map(id, inner.invars), equation.invars, strict=True))
        if found is not None and all(id(one) in outside for one in found):
            return [outside[id(one)] for one in found]
    return None


def _adds_rows(equation: Any) -> bool:
    how = equation.params["dimension_numbers"]
    table, _, updates = (one.aval.shape for one in equation.invars)
    return (
        how.scatter_dims_to_operand_dims == (0,)
        and how.inserted_window_dims == (0,)
        and how.operand_batching_dims == ()
        and equation.params["mode"] != jax.lax.GatherScatterMode.CLIP
        and tuple(updates[i] for i in how.update_window_dims) == table[1:]
    )


def _of_rows(gradient: Any, indices: list[Any]) -> RowGradient:
    """Return a dense gradient as rows. A repeated index has its value once, and then zeros."""
    rows = jnp.concatenate([jnp.reshape(one, (-1,)) for one in indices])
    order = jnp.arange(rows.size)
    first = jnp.full(gradient.shape[0], rows.size).at[rows].min(order, mode="drop")
    is_first = first.at[rows].get(mode="fill", fill_value=-1) == order
    values = gradient.at[rows].get(mode="fill", fill_value=0)
    mask = jnp.reshape(is_first, (-1, *[1] * (values.ndim - 1)))
    return RowGradient(jnp.where(mask, values, 0), rows, gradient.shape)
