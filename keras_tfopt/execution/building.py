"""Creating the state of an optimizer for the variables of a model."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.scopes import check_creatable
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like, Slot


def path_of(variable: Any) -> str:
    """The path of a Keras variable, or the name of one of the backend's."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def describe(variable: Any, owner: str) -> Like:
    """The static facts of a variable, which must be one that can be trained."""
    check_variables([variable], owner)
    dtype = keras.backend.standardize_dtype(variable.dtype)
    path = path_of(variable)
    if not dtype.startswith(("float", "bfloat")):
        raise TypeError(
            f"{owner} updates floating-point variables. Received: {path!r} of dtype {dtype}"
        )
    return Like(tuple(variable.shape), "float64" if dtype == "float64" else "float32", path)


def constant(value: Any) -> Callable[..., Any]:
    """An initializer. That of Keras rounds to float32 on TensorFlow."""

    def initial(shape: Any, dtype: Any = None) -> Any:
        return ops.full(shape, ops.convert_to_tensor(value, dtype), dtype)

    return initial


def _identity(shape: Any, dtype: Any = None) -> Any:
    return ops.eye(*shape, dtype=dtype)


def add_slot(optimizer: Any, variable: Any, like: Like, name: str, slot: Slot) -> keras.Variable:
    """Creates a slot beside its variable: on its device, in its layout."""
    if not isinstance(slot, Slot):
        raise TypeError(f"`slots` must give a Slot for {name!r}. Received: {slot!r}")

    def initial(shape: Any, dtype: Any = None) -> Any:
        # As an initializer, which runs once; an assignment in a traced step would run every time.
        backend.check_copyable(variable)
        return backend.copy_of(variable, dtype)

    initializers: dict[Any, Callable] = {"variable": initial, "identity": _identity}
    with backend.colocated(optimizer, variable):
        return optimizer.add_variable(
            shape=tuple(slot.shape),
            initializer=initializers.get(slot.initial) or constant(slot.initial),
            dtype=slot.dtype or like.dtype,
            layout=backend.layout(variable, tuple(slot.shape)),
            name=f"{like.path.replace('/', '_')}_{name}",
        )


def listed(argument: str, values: Any) -> list[Any]:
    """A list of what was given, or an error for a variable in the place of several."""
    # A variable of JAX has an item for each index there is: iterating over it never ends.
    if backend.is_variable(values):
        raise TypeError(
            f"Argument `{argument}` must be a list with an item for each variable. Received: "
            f"{values!r}"
        )
    return list(values)


def pair(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None
) -> tuple[list[Any], list[Any]]:
    """Gradients and variables one to one, the optimizer built for them; or an error."""
    grads = listed("grads", grads)
    if variables is None:
        if not optimizer.built:
            raise ValueError(
                "`trainable_variables` can only be left out once the optimizer is built. "
                "Pass them, or call `optimizer.build(variables)` first."
            )
        variables = optimizer._trainable_variables
    variables = listed("trainable_variables", variables)
    if len(grads) != len(variables):
        raise ValueError(
            f"There must be a gradient (or None) for each variable. Received: {len(grads)} "
            f"gradients for {len(variables)} variables"
        )
    if variables and not optimizer.built:
        check_variables(variables, type(optimizer).__name__)
        with keras.name_scope(optimizer.name):
            backend.once(lambda: optimizer.build(distinct(variables)))
    if not are_same(variables, optimizer._trainable_variables):
        check_known(optimizer, variables)
    return grads, variables


def check_variables(variables: Sequence[Any], owner: str) -> None:
    """Raises an error, with what to write, for what is no variable."""
    for value in variables:
        if not backend.is_variable(value):
            raise TypeError(
                f"{owner} updates variables of Keras; {instead_of(value)}. Received: a "
                f"{type(value).__module__}.{type(value).__qualname__}"
            )


def instead_of(value: Any) -> str:
    """What to write where this stands in the place of a variable."""
    if type(value).__module__.startswith("torch.nn.") and keras.backend.backend() == "torch":
        return "make a variable of it once, which shares its memory: keras.Variable(p)"
    return "gradients come first: apply(gradients, variables), apply_gradients([(g, v)])"


def distinct(variables: Sequence[Any]) -> list[Any]:
    """Variables in their order, each once."""
    return list({id(variable): variable for variable in variables}.values())


def check_distinct(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises an error, by their names, for variables that are listed more than once."""
    if len({id(variable) for variable in variables}) == len(variables):
        return
    paths = [path_of(variable) for variable in variables]
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    raise ValueError(
        f"{type(optimizer).__name__} takes each variable once in a step. Received more than once: "
        f"{repeated}"
    )


def check_known(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises an error, by their names, for variables that an optimizer was not built for."""
    check_variables(variables, type(optimizer).__name__)
    # Keras's own error shows values, and before 3.15 fails where a step is being compiled.
    unknown = _unknown(optimizer, variables)
    if unknown:
        raise ValueError(
            f"{type(optimizer).__name__} was built for other variables than "
            f"{[path_of(variable) for variable in unknown]}. For a new set of variables, create a "
            "new optimizer"
        )


def _unknown(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Those of some variables that an optimizer was not built for."""
    known = optimizer._trainable_variables_indices
    return [variable for variable in variables if optimizer._var_key(variable) not in known]


def prepare(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds any optimizer for these variables, or extends it by those that it does not know.

    Raises:
        ValueError: if it does not know them, and cannot be extended.
    """
    variables = distinct(variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        prepare(inner, variables)
        variables = inner._trainable_variables  # wrappers count variables as those inside do
    if not optimizer.built:
        check_creatable(type(optimizer).__name__)
        with keras.name_scope(optimizer.name):
            backend.once(lambda: optimizer.build(variables))
        return
    if are_same(variables, optimizer._trainable_variables):
        return
    new = _unknown(optimizer, variables)
    if not new:
        return
    if not hasattr(optimizer, "extend"):
        raise ValueError(
            f"{type(optimizer).__name__} of Keras keeps to the variables of its first step. "
            f"Received, beyond those: {[path_of(variable) for variable in new]}. Pass all of "
            "them in the first step"
        )
    check_creatable(type(optimizer).__name__)
    with keras.name_scope(optimizer.name):
        backend.once(lambda: optimizer.extend(new))


def mend_loss_scaling(likes: list[Like]) -> None:
    """Gives Keras's loss scaling the step of ours; to be called by what it builds.

    Under mixed_float16, `compile` puts any optimizer into a `LossScaleOptimizer`. Keras's step
    reads all gradients as dense tensors, before the optimizer inside could see which rows there
    are; on PyTorch it fails on sparse ones, and on TensorFlow it asks one replica only.
    """
    # What builds upon this module cannot be imported before it.
    from keras_tfopt.execution.loss_scaling import LossScalingEngine

    frame = inspect.currentframe()
    while frame is not None:
        outer = frame.f_locals.get("self") if frame.f_code.co_name == "build" else None
        if outer is not None and type(outer) is keras.optimizers.LossScaleOptimizer:
            outer._likes = likes
            outer.apply = types.MethodType(LossScalingEngine.apply, outer)
            outer.stateless_apply = types.MethodType(LossScalingEngine.stateless_apply, outer)
        frame = frame.f_back


def are_same(variables: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    return len(variables) == len(others) and all(map(operator.is_, variables, others))
