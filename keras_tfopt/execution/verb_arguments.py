"""Checks of what is given to `minimize`, `compute_gradients` and `apply_gradients`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.building import instead_of, path_of
from keras_tfopt.execution.select import backend

GATES = (0, 1, 2)  # Optimizer.GATE_NONE, GATE_OP and GATE_GRAPH


def check_computing(
    gate_gradients: Any, aggregation_method: Any, colocate_gradients_with_ops: Any
) -> None:
    """Raises an error if one of these arguments is not among its values."""
    if gate_gradients not in GATES:
        raise ValueError(
            "Argument `gate_gradients` must be one of Optimizer.GATE_NONE, Optimizer.GATE_OP "
            f"and Optimizer.GATE_GRAPH. Received: {gate_gradients!r}"
        )
    if aggregation_method not in (None, 0, 1, 2):
        raise ValueError(
            "Argument `aggregation_method` must be None or a value of "
            f"tf.AggregationMethod, 0 to 2. Received: {aggregation_method!r}"
        )
    if not isinstance(colocate_gradients_with_ops, bool):
        raise TypeError(
            "Argument `colocate_gradients_with_ops` must be True or False. Received: "
            f"{colocate_gradients_with_ops!r}"
        )


def checked_variables(
    var_list: Any,
    error: type[Exception],
    argument: str = "var_list",
    more: tuple[type, ...] = (),
) -> list[Any]:
    """The variables of an argument, which may be a single one or nested lists; or an error.

    Args:
        var_list: The argument.
        error: What to raise.
        argument: Its name.
        more: Types of what counts as well.
    """

    def fits(value: Any) -> bool:
        return backend.is_variable(value) or isinstance(value, more)

    if fits(var_list):
        return [var_list]
    try:
        variables = list(var_list)
        if not all(map(fits, variables)):  # flattening takes longer than a small step
            variables = keras.tree.flatten(variables)
    except TypeError:
        raise error(
            f"Argument `{argument}` must be a list of variables. Received: {var_list!r}"
        ) from None
    for variable in variables:
        if not fits(variable):
            raise error(
                f"Argument `{argument}` must hold variables only. Received: "
                f"{variable!r}{of_tensorflow(variable)}"
            )
    return variables


def tuples_of(grads_and_vars: Iterable[Any]) -> list[tuple]:
    """What is to be pairs of a gradient and a variable, at least one; or an error."""
    # A variable of JAX has an item for each index there is: iterating over it never ends.
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
    pairs = [tuple(pair) for pair in pairs]
    if not pairs:
        raise ValueError(
            "Argument `grads_and_vars` must hold at least one pair. Received: no variables"
        )
    return pairs


def check_pairs(pairs: Iterable[tuple]) -> None:
    """Raises an error for what is no pair of anything and a variable."""
    for pair in pairs:
        if len(pair) != 2 or not backend.is_variable(pair[1]):
            hint = f"; {instead_of(pair[1])}" if len(pair) == 2 else ""
            raise TypeError(
                f"Argument `grads_and_vars` must hold pairs of a gradient and a variable{hint}. "
                f"Received: {pair!r}{of_tensorflow(pair[-1]) if pair else ''}"
            )


def pairs_of(grads_and_vars: Iterable[Any]) -> list[tuple]:
    """Pairs of anything and a variable, at least one; or an error."""
    pairs = tuples_of(grads_and_vars)
    check_pairs(pairs)
    return pairs


def check_precision(pairs: Iterable[tuple]) -> None:
    """Raises an error for gradients in float64 of variables that are not."""
    for gradient, variable in pairs:
        if "float64" not in str(getattr(gradient, "dtype", "")):
            continue
        if "float64" not in str(variable.dtype):
            raise TypeError(
                f"The gradient of {path_of(variable)!r} must be in the variable's data type "
                f"{keras.backend.standardize_dtype(variable.dtype)}. Received: float64"
            )


def check_any_gradient(pairs: Sequence[Any], more: str = "") -> None:
    """Raises an error if no variable has a gradient."""
    if all(gradient is None for gradient, _ in pairs):
        names = [path_of(variable) for _, variable in pairs]
        raise ValueError(
            f"No gradients provided for any variable: of the variables {names}, the loss depends "
            f"on none{more}"
        )


def check_counter(global_step: Any) -> None:
    """Raises an error if this is neither None nor a variable that can count steps."""
    if global_step is None:
        return
    if not (
        backend.is_variable(global_step)
        and _rank(global_step.shape) in (0, None)
        and ("int" in str(global_step.dtype) or "float" in str(global_step.dtype))
    ):
        raise TypeError(
            "Argument `global_step` must be None or a scalar variable of numbers. Received: "
            f"{global_step!r}"
        )


def _rank(shape: Any) -> int | None:
    return shape.rank if hasattr(shape, "rank") else len(shape)


def of_tensorflow(value: Any) -> str:
    """What to say of something of TensorFlow where Keras has another backend."""
    name = keras.backend.backend()
    if name == "tensorflow" or not type(value).__module__.startswith("tensorflow."):
        return ""
    return (
        f", which is TensorFlow's, while Keras runs on {name!r}. Graphs, sessions and variables "
        "of TensorFlow need its backend: set the environment variable KERAS_BACKEND=tensorflow"
    )
