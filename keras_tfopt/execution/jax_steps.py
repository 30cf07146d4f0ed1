"""Steps compiled by JAX and kept, for functions that read and assign variables."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend.core
import numpy as np

from keras_tfopt.execution.jax_closures import Captured
from keras_tfopt.execution.jax_loss import is_tracing
from keras_tfopt.execution.scopes import Given

MANY = 8  # compilations of one optimizer, from which something must be changing in every step


class _Traced(NamedTuple):
    program: Any  # a closed jaxpr
    form: Any  # of its results
    inputs: list[Any]  # variables
    read: list[Any]
    written: list[Any]


class _Step(NamedTuple):
    run: Callable
    traced: _Traced
    trainable: list[bool]  # of the variables, when it was traced
    kept: list[Any]


def run_step(cache: dict[Any, Any], step: Callable[..., Any], arguments: tuple) -> Any:
    """`step(*arguments)`, compiled once and kept in the cache."""
    if is_tracing():
        return step(*arguments)
    captured = Captured((step, arguments))
    found = cache.get(captured.key)
    if found is None or found.trainable != _trainable(found.traced.inputs):
        found = cache[captured.key] = _compile(captured)
        if len(cache) == MANY:
            warnings.warn(
                f"`compiled=True` has compiled {MANY} steps, as the loss reads other numbers, "
                "objects or shapes each time. Let it read arrays or variables instead",
                stacklevel=4,
            )
    traced = found.traced
    leaves = found.run(*captured.arrays, *[variable.value for variable in traced.inputs])
    result, values = jax.tree_util.tree_unflatten(traced.form, leaves)
    for variable, value in zip(traced.written, values, strict=True):
        variable.assign(value)
    return result


def _compile(captured: Captured) -> _Step:
    traced = _trace(captured, [])
    while len(traced.read) > len(traced.inputs):
        traced = _trace(captured, traced.read)
    again = _trace(captured, traced.read)
    if not _same(traced.program, again.program):
        raise ValueError(
            "`compiled=True` would keep numbers of the first step that the loss makes anew each "
            "time, such as those of numpy.random or of a clock. Random numbers of keras.random "
            "with a SeedGenerator advance"
        )
    run = jax.jit(jax.extend.core.jaxpr_as_fun(again.program))
    return _Step(run, again, _trainable(again.inputs), captured.kept)


def _trace(captured: Captured, inputs: list[Any]) -> _Traced:
    scopes = []

    def program(arrays: list[Any], values: list[Any]) -> Any:
        with captured.exchanged(arrays) as (step, arguments):
            with Given(inputs, values) as scope:
                result = step(*arguments)
        scopes.append(scope)
        return result, scope.new_values()

    values = [variable.value for variable in inputs]
    made, form = jax.make_jaxpr(program, return_shape=True)(captured.arrays, values)
    scope = scopes[0]
    others = [v for key, v in scope.read.items() if key not in set(map(id, inputs))]
    structure = jax.tree_util.tree_structure(form)
    return _Traced(made, structure, inputs, [*inputs, *others], list(scope.written.values()))


def _trainable(variables: list[Any]) -> list[bool]:
    return [variable.trainable for variable in variables]


def _same(program: Any, other: Any) -> bool:
    """Whether two traces of one function came out alike."""
    text, other_text = (re.sub("0x[0-9a-f]+", "", str(p.jaxpr)) for p in (program, other))
    if text != other_text or len(program.consts) != len(other.consts):
        return False
    return all(
        a is b or np.array_equal(np.asarray(a), np.asarray(b), equal_nan=_is_float(a))
        for a, b in zip(program.consts, other.consts, strict=True)
    )


def _is_float(array: Any) -> bool:
    return np.issubdtype(np.asarray(array).dtype, np.floating)
