"""Create the state of an optimizer for the variables of a model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.scopes import check_creatable
from keras_tfopt.engine.state.state import Like, Slot


def path_of(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of one of the backend's."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def describe(variable: Any, owner: str) -> Like:
    """Return the static facts of a variable, which must be one that can be trained."""
    check_variables([variable], owner)
    dtype = keras.backend.standardize_dtype(variable.dtype)
    path = path_of(variable)
    if not dtype.startswith(("float", "bfloat")):
        raise TypeError(
            f"{owner} updates floating-point variables. Received: {path!r} of dtype {dtype}"
        )
    return Like(tuple(variable.shape), "float64" if dtype == "float64" else "float32", path)


def generators_of(owner: Any) -> dict[str, Any]:
    """Return the generators of random numbers that a rule or wrapper has as attributes, by name."""
    kind = keras.random.SeedGenerator
    return {name: value for name, value in vars(owner).items() if isinstance(value, kind)}


def constant(value: Any) -> Callable[..., Any]:
    """Return an initializer. Keras's own rounds to float32 on TensorFlow."""

    def initial(shape: Any, dtype: Any = None) -> Any:
        return ops.full(shape, ops.convert_to_tensor(value, dtype), dtype)

    return initial


def _identity(shape: Any, dtype: Any = None) -> Any:
    return ops.ones(shape, dtype=dtype) * ops.eye(*shape[-2:], dtype=dtype)


def check_slots_of_elements(owner: str, slots: Mapping[str, Slot], like: Like) -> None:
    """Raise an error for slots that do not have the shape of the variable."""
    for name, slot in slots.items():
        if tuple(slot.shape) != like.shape:
            raise ValueError(
                f"Slot {name!r} of an elementwise {owner} must have the variable's shape "
                f'{like.shape}. Received: {slot.shape}. Set `scope = "variable"` for others.'
            )


def add_slot(optimizer: Any, variable: Any, like: Like, name: str, slot: Slot) -> keras.Variable:
    """Create a slot on the device of its variable, in its layout."""

    def initial(shape: Any, dtype: Any = None) -> Any:
        # An initializer runs once; an assignment in a traced step would run in every step.
        if variable is not None:
            return backend.copy_of(variable, dtype)
        values = [backend.copy_of(entry.variable, dtype) for entry in optimizer._state.entries]
        return ops.concatenate([ops.reshape(value, (-1,))[:: slot.every] for value in values])

    initializers: dict[Any, Any] = {"variable": initial, "identity": _identity, 0: "zeros"}
    return backend.add_variable(
        optimizer,
        variable,
        shape=tuple(slot.shape),
        initializer=initializers.get(slot.initial) or constant(slot.initial),
        dtype=slot.dtype or like.dtype,
        name=f"{like.path.replace('/', '_')}_{name}",
    )


def listed(argument: str, values: Any) -> list[Any]:
    """Return values as a list, or raise an error for a single one."""
    # A variable of JAX returns an item for every index, so iterating over it never ends.
    is_one = backend.is_variable(values) or ops.is_tensor(values)
    if is_one or not isinstance(values, Iterable):
        raise TypeError(
            f"Argument `{argument}` must be a list with an item for each variable. Received: "
            f"{values!r}"
        )
    return list(values)


def takes_all_variables(optimizer: Any, grads: Any, variables: Any) -> bool:
    """Return whether there is an item in `grads` for each variable an optimizer was built for."""
    if not (optimizer.built and isinstance(grads, (list, tuple))):
        return False
    known = optimizer._trainable_variables
    if variables is None:
        return len(grads) == len(known)
    return (
        isinstance(variables, (list, tuple))
        and len(grads) == len(variables) == len(known)
        and all(map(operator.is_, variables, known))
    )


def pair(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any] | None, once: bool
) -> tuple[list[Any], list[Any]]:
    """Return gradients and variables one to one, and build the optimizer; or raise an error.

    With `once`, each variable must have one gradient at most.
    """
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
    if once:
        moved = [v for g, v in zip(grads, variables, strict=True) if g is not None]
        check_distinct(optimizer, moved)
    if variables and not optimizer.built:
        check_variables(variables, type(optimizer).__name__)
        backend.once(lambda: optimizer.build(distinct(variables)))
    check_known(optimizer, variables)
    return grads, variables


def tuples_of(grads_and_vars: Iterable[Any]) -> list[tuple]:
    """Return pairs as tuples, or raise an error if there are none."""
    # A variable of JAX returns an item for every index, so iterating over it never ends.
    is_one = backend.is_variable(grads_and_vars) or ops.is_tensor(grads_and_vars)
    if is_one or not isinstance(grads_and_vars, Iterable):
        raise TypeError(
            "Argument `grads_and_vars` must hold pairs of a gradient and a variable. Received: "
            f"{grads_and_vars!r}"
        )
    pairs = list(grads_and_vars)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)):
            raise TypeError(
                "Argument `grads_and_vars` must hold pairs of a gradient and a variable, as in "
                f"`zip(gradients, variables)`. Received: {pair!r}{of_tensorflow(pair)}"
            )
    pairs = list(map(tuple, pairs))
    if not pairs:
        raise ValueError(
            "Argument `grads_and_vars` must hold at least one pair. Received: no variables"
        )
    return pairs


def check_pairs(pairs: list[tuple]) -> list[tuple]:
    """Return the tuples, or raise an error unless each is of two with a variable second."""
    for pair in pairs:
        if len(pair) != 2 or not backend.is_variable(pair[1]):
            hint = f"; {instead_of(pair[1])}" if len(pair) == 2 else ""
            raise TypeError(
                f"Argument `grads_and_vars` must hold pairs of a gradient and a variable{hint}. "
                f"Received: {pair!r}{of_tensorflow(pair[-1]) if pair else ''}"
            )
    return pairs


def of_tensorflow(value: Any) -> str:
    """Return a hint for a value of TensorFlow if Keras has another backend, else ""."""
    name = keras.backend.backend()
    if name == "tensorflow" or not type(value).__module__.startswith("tensorflow."):
        return ""
    return (
        f", which is TensorFlow's, while Keras runs on {name!r}. Graphs, sessions and variables "
        "of TensorFlow need its backend: set the environment variable KERAS_BACKEND=tensorflow"
    )


def check_variables(variables: Sequence[Any], owner: str) -> None:
    """Raise an error for anything but variables, which says what to write."""
    for value in variables:
        if not backend.is_variable(value):
            raise TypeError(
                f"{owner} updates variables of Keras; {instead_of(value)}. Received: a "
                f"{type(value).__module__}.{type(value).__qualname__}"
            )


def instead_of(value: Any) -> str:
    """Return what to write instead of this value, which is not a variable."""
    if type(value).__module__.startswith("torch.nn.") and keras.backend.backend() == "torch":
        return "make a variable of it once, which shares its memory: keras.Variable(p)"
    return "gradients come first: apply(gradients, variables), apply_gradients([(g, v)])"


def distinct(variables: Sequence[Any]) -> list[Any]:
    """Return each variable once, in order."""
    return list({id(variable): variable for variable in variables}.values())


def check_distinct(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise an error that names variables which are listed more than once."""
    if len({id(variable) for variable in variables}) == len(variables):
        return
    paths = [path_of(variable) for variable in variables]
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    raise ValueError(
        f"{type(optimizer).__name__} takes each variable once. Received more than once: {repeated}"
    )


def check_known(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raise an error that names variables which an optimizer was not built for."""
    check_variables(variables, type(optimizer).__name__)
    # Keras's own error shows values, and before Keras 3.15 fails while a step is being compiled.
    unknown = _unknown(optimizer, variables)
    if unknown:
        raise ValueError(
            f"{type(optimizer).__name__} was built for other variables than "
            f"{[path_of(variable) for variable in unknown]}. For a new set of variables, create a "
            "new optimizer"
        )


def _unknown(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return those of some variables that an optimizer was not built for."""
    known = optimizer._trainable_variables_indices
    return [variable for variable in variables if optimizer._var_key(variable) not in known]


def prepare(optimizer: Any, variables: Sequence[Any]) -> None:
    """Build any optimizer for these variables, or extend it by new ones among them.

    Raises:
        ValueError: if there are new ones, and it cannot be extended.
    """
    variables = distinct(variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and not getattr(optimizer, "must_be_outermost", False):
        prepare(inner, variables)
        variables = inner._trainable_variables  # wrappers count variables as those inside do
    if optimizer.built:
        variables = _unknown(optimizer, variables)
        if not variables:
            return
        if not hasattr(optimizer, "extend"):
            raise ValueError(
                f"{type(optimizer).__name__} of Keras keeps to the variables of its first step. "
                f"Received, beyond those: {[path_of(variable) for variable in variables]}. Pass "
                "all of them in the first step"
            )
    check_creatable(type(optimizer).__name__)
    create = optimizer.extend if optimizer.built else optimizer.build
    backend.once(lambda: create(variables))
