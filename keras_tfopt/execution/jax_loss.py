"""Gradients of a loss on JAX, of variables that stand for arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import keras
import numpy as np

from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.scopes import Given, in_scope, is_trainable


def concretely() -> contextlib.AbstractContextManager:
    return jax.ensure_compile_time_eval()


def is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)


def is_tracing() -> bool:
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def check_traceable(verb: str, assigns: bool = True) -> None:
    """Raises an error where assigned variables would hold tracers for good."""
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
    """What the loss gives, its gradients, and the variables, found if they are None."""
    if variables is not None:
        result, gradients, scope = _differentiated(loss, variables, seed, by_rows)
    else:
        # Only what has been an argument can be differentiated by, and what there is to
        # differentiate by is known only when the loss has run: of what is likely, all is tried.
        variables = list(likely) or _read(loss)
        while True:
            result, gradients, scope = _differentiated(loss, variables, seed, by_rows)
            found = [v for v in scope.read.values() if is_trainable(v)]
            places = {id(v): place for place, v in enumerate(variables)}
            if all(id(v) in places for v in found):
                break
            variables = found
        gradients = [gradients[places[id(v)]] for v in found]
        variables = found
    if scope.written:
        check_traceable("compute_gradients")
    for variable, value in zip(scope.written.values(), scope.values, strict=True):
        variable.assign(value)
    return result, gradients, list(variables)


def _read(loss: Callable[[], Any]) -> list[Any]:
    with Given() as scope:
        jax.eval_shape(loss)
    return [v for v in scope.read.values() if is_trainable(v)]


class _Recorded(Given):
    values: list[Any]  # of `written`, when the loss had run


def _differentiated(
    loss: Callable[[], Any],
    variables: Sequence[Any],
    seed: Callable[[Any], Any] | None,
    by_rows: bool,
) -> tuple[Any, list[Any], _Recorded]:
    scopes = []

    def of_values(values: list[Any]) -> Any:
        with _Recorded(variables, values) as scope:
            result = loss()
        scopes.append(scope)
        return result, scope.new_values()

    given = [variable.value for variable in variables]
    result, pull_back, new = jax.vjp(of_values, given, has_aux=True)
    scopes[0].values = new
    # Where the loss does not depend on an argument, JAX writes zeros, and only the trace of the
    # way back tells them from zeros that were computed.
    weight = jnp.ones_like(result) if seed is None else seed(result)
    trace = jax.make_jaxpr(pull_back)(weight)
    gradients = jax.extend.core.jaxpr_as_fun(trace)(weight)
    made = {id(equation.outvars[0]): equation for equation in trace.jaxpr.eqns}
    gradients = [
        None if _is_zero(variable, made) else gradient
        for variable, gradient in zip(trace.jaxpr.outvars, gradients, strict=True)
    ]
    if by_rows:
        known = dict(zip(map(id, trace.jaxpr.constvars), trace.consts, strict=True))
        for place, variable in enumerate(trace.jaxpr.outvars):
            found = _looked_up(trace.jaxpr, variable)
            if gradients[place] is not None and found and all(id(i) in known for i in found):
                gradients[place] = _of_rows(gradients[place], [known[id(i)] for i in found])
    return result, gradients, scopes[0]


def _looked_up(jaxpr: Any, variable: Any) -> list[Any] | None:
    """The indices of the lookups that a gradient comes from, None if it comes from more.

    The way back from a lookup adds rows to zeros; what several ways bring is added up.
    """
    made = {id(out): (one, place) for one in jaxpr.eqns for place, out in enumerate(one.outvars)}
    if id(variable) not in made:
        return None
    equation, place = made[id(variable)]
    name = equation.primitive.name
    if _is_zero(variable, {id(variable): equation}):
        return []
    if name == "add_any":
        parts = [_looked_up(jaxpr, one) for one in equation.invars]
        return None if None in parts else [i for part in parts for i in part or ()]
    if name == "scatter-add" and _adds_rows(equation):
        rest = _looked_up(jaxpr, equation.invars[0])
        return None if rest is None else [*rest, equation.invars[1]]
    if name in ("jit", "pjit"):
        inner = equation.params["jaxpr"].jaxpr
        found = _looked_up(inner, inner.outvars[place])
        outside = dict(zip(map(id, inner.invars), equation.invars, strict=True))
        if found is not None and all(id(i) in outside for i in found):
            return [outside[id(i)] for i in found]
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
    """The same gradient, of the rows that are named; each has its sum where it is named first."""
    rows = jnp.concatenate([jnp.reshape(one, (-1,)) for one in indices])
    order = jnp.arange(rows.size)
    first = jnp.full(gradient.shape[0], rows.size).at[rows].min(order, mode="drop")
    is_first = first.at[rows].get(mode="fill", fill_value=-1) == order
    values = gradient.at[rows].get(mode="fill", fill_value=0)
    mask = jnp.reshape(is_first, (-1, *[1] * (values.ndim - 1)))
    return RowGradient(jnp.where(mask, values, 0), rows, gradient.shape)


def _is_zero(variable: Any, made: dict[int, Any]) -> bool:
    """Whether an output of a trace is the constant zero."""
    if isinstance(variable, jax.extend.core.Literal):
        return not np.any(variable.val)
    equation = made.get(id(variable))
    if equation is None or equation.primitive.name != "broadcast_in_dim":
        return False
    return _is_zero(equation.invars[0], {})
