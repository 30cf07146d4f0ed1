"""Compile training steps on JAX, for `minimize(..., compiled=True)`."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import numpy as np
from keras import ops

from keras_tfopt.engine.backends import defaults
from keras_tfopt.engine.backends.jax.loss import is_tracing
from keras_tfopt.engine.state.scopes import Given

MANY = 8  # a warning comes with this number of compiled steps of one optimizer


class Steps(defaults.Steps):
    def __init__(self) -> None:
        self._steps: dict[Any, _Step] = {}
        self._count = 0

    def run(
        self,
        step: Callable[..., Any],
        loss: Callable[..., Any],
        arguments: tuple,
        static: Sequence[Any],
        check: Callable[[], None],
    ) -> Any:
        if is_tracing():
            return step(*arguments)
        leaves, form = jax.tree.flatten(arguments)
        others, form_of_others = jax.tree.flatten(static, is_leaf=lambda value: value is None)
        owner, function = _owner_and_function(loss)
        key = (
            (id(owner), id(function)),
            (form, *map(_kind, leaves)),
            (form_of_others, *map(_identity, others)),
        )
        found = self._steps.get(key)
        if found is None or not found.is_for(owner):
            check()
            found = _compile(step, loss, arguments, others)
            self._keep(key, found)
        values = [variable.value for variable in found.read]
        result, assigned = jax.tree.unflatten(found.form, found.run(*leaves, *values))
        for variable, value in zip(found.written, assigned, strict=True):
            variable.assign(value)
        return result

    def _keep(self, key: Any, step: _Step) -> None:
        alive = self._steps.items()
        self._steps = {key: other for key, other in alive if other.owner() is not None}
        self._steps[key] = step
        self._count += 1
        if self._count == MANY:
            warnings.warn(
                f"`compiled=True` has compiled {MANY} steps of one optimizer: each function is "
                "compiled for itself, and for each shape of its inputs. Pass the same function in "
                "every call, and what changes in `inputs=`",
                stacklevel=5,
            )


class _Step(NamedTuple):
    run: Callable[..., Any]  # takes leaves of the arguments, then values of `read`
    form: Any  # of the result and the values of `written`
    read: list[Any]  # variables
    written: list[Any]  # variables
    trainable: list[bool]  # of the variables read, when the step was compiled
    owner: weakref.ref  # of the loss, see `_owner_and_function`
    kept: list[Any]  # objects whose ids are in the key: no other object may get such an id

    def is_for(self, owner: Any) -> bool:
        return self.owner() is owner and self.trainable == _trainable(self.read)


def _owner_and_function(loss: Any) -> tuple[Any, Any]:
    """Return the object and the function of a method; of another function, twice itself.

    A method itself cannot be a key: each access to it makes a new object.
    """
    function = getattr(loss, "__func__", None)
    return (loss, loss) if function is None else (loss.__self__, function)


def _kind(leaf: Any) -> Any:
    """Return a key that is equal for arguments that one compiled step can take."""
    if not hasattr(leaf, "dtype"):
        return type(leaf)
    return tuple(leaf.shape), leaf.dtype, getattr(leaf, "weak_type", False)


def _identity(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else id(value)


def _trainable(variables: list[Any]) -> list[bool]:
    return [variable.trainable for variable in variables]


def _compile(step: Any, loss: Any, arguments: tuple, static: list[Any]) -> _Step:
    traced = _trace(step, arguments, [])
    while len(traced.read) > len(traced.given):
        traced = _trace(step, arguments, traced.read)
    _check_loss(loss, arguments[0], traced.read)
    owner, function = _owner_and_function(loss)
    return _Step(
        jax.jit(jax.extend.core.jaxpr_as_fun(traced.program)),
        traced.form,
        traced.read,
        traced.written,
        _trainable(traced.read),
        weakref.ref(owner),
        kept=static if owner is function else [function, *static],
    )


class _Traced(NamedTuple):
    program: Any  # a closed jaxpr
    form: Any  # of its results
    given: list[Any]  # variables whose values are arguments
    read: list[Any]  # variables
    written: list[Any]  # variables


def _trace(function: Callable[..., Any], arguments: tuple, given: list[Any]) -> _Traced:
    """Trace a function, with the values of these variables as further arguments."""
    scopes = []

    def program(arguments: tuple, values: list[Any]) -> Any:
        with Given(given, values) as scope:
            result = function(*arguments)
        scopes.append(scope)
        return result, scope.new_values()

    values = [variable.value for variable in given]
    made, shapes = jax.make_jaxpr(program, return_shape=True)(arguments, values)
    scope, known = scopes[0], set(map(id, given))
    others = [variable for key, variable in scope.read.items() if key not in known]
    written = list(scope.written.values())
    return _Traced(made, jax.tree.structure(shapes), given, [*given, *others], written)


def _check_loss(loss: Any, inputs: tuple, variables: list[Any]) -> None:
    """Raise an error if a loss reads arrays that are not inputs, or numbers that change."""

    def value(*inputs: Any) -> Any:
        return ops.convert_to_tensor(loss(*inputs))

    program, again = (_trace(value, inputs, variables).program for _ in range(2))
    arrays = list(_arrays_in(program))
    if arrays:
        shown = ", ".join(f"shape {tuple(a.shape)} and dtype {a.dtype}" for a in arrays[:3])
        raise ValueError(
            "With `compiled=True`, a loss takes its arrays as arguments: pass them in `inputs=`, "
            "as in minimize(loss, inputs=(x, y), compiled=True) for a function loss(x, y). An "
            "array that never changes may be in a keras.Variable(array, trainable=False). "
            f"Received: a loss that reads other arrays, {len(arrays)} in all, of {shown}"
        )
    if _text(program) != _text(again):
        raise ValueError(
            "`compiled=True` would keep numbers of the first step that the loss makes anew each "
            "time, such as those of numpy.random or of an iterator: pass them in `inputs=`. Random "
            "numbers of keras.random with a SeedGenerator advance"
        )


def _arrays_in(program: Any) -> Iterator[Any]:
    """Yield the constant arrays of a trace, without scalars and without those that Keras makes."""
    programs = list(_programs_in(program))
    shapes = {
        tuple(variable.aval.shape)
        for one in programs
        for equation in one.jaxpr.eqns
        for variable in (*equation.invars, *equation.outvars)
        if hasattr(variable.aval, "shape")
    }
    for one in programs:
        for constant in map(np.asarray, one.consts):
            # Keras makes tensors of shapes, as in means, and of the increment of a SeedGenerator.
            is_short = constant.ndim == 1 and constant.size <= 8 and constant.dtype.kind in "iu"
            numbers = tuple(constant.tolist()) if is_short else None
            is_increment = numbers == (0, 1) and constant.dtype == "uint32"
            if constant.ndim and numbers not in shapes and not is_increment:
                yield constant


def _programs_in(program: Any) -> Iterator[Any]:
    """Yield a trace, and the traces of the functions that it calls."""
    yield program
    for equation in program.jaxpr.eqns:
        for parameter in equation.params.values():
            for one in parameter if isinstance(parameter, (tuple, list)) else [parameter]:
                if isinstance(one, jax.extend.core.Jaxpr):
                    # From JAX 0.11 on, it has its constants itself.
                    one = jax.extend.core.ClosedJaxpr(one, getattr(one, "consts", ()))
                if isinstance(one, jax.extend.core.ClosedJaxpr):
                    yield from _programs_in(one)


def _text(program: Any) -> str:
    """Return the operations and numbers of a trace, without addresses of objects."""
    return re.sub("0x[0-9a-f]+", "", str(program.jaxpr))
