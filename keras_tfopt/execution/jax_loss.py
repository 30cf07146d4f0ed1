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
) -> tuple[Any, list[Any], list[Any]]:
    """What the loss gives, its gradients, and the variables, found if they are None."""
    if variables is not None:
        result, gradients, scope = _differentiated(loss, variables, seed)
    else:
        # Only what has been an argument can be differentiated by, and what there is to
        # differentiate by is known only when the loss has run: of what is likely, all is tried.
        variables = list(likely) or _read(loss)
        while True:
            result, gradients, scope = _differentiated(loss, variables, seed)
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
    loss: Callable[[], Any], variables: Sequence[Any], seed: Callable[[Any], Any] | None
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
    return result, gradients, scopes[0]


def _is_zero(variable: Any, made: dict[int, Any]) -> bool:
    """Whether an output of a trace is the constant zero."""
    if isinstance(variable, jax.extend.core.Literal):
        return not np.any(variable.val)
    equation = made.get(id(variable))
    if equation is None or equation.primitive.name != "broadcast_in_dim":
        return False
    return _is_zero(equation.invars[0], {})
