"""Checks of the arguments of `minimize`, `compute_gradients` and `apply_gradients`."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.engine import RowGradient, as_named_rows, is_dense
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.state.building import check_pairs, of_tensorflow, path_of, tuples_of

GATES = (0, 1, 2)  # Optimizer.GATE_NONE, GATE_OP and GATE_GRAPH


def check_computing(
    gate_gradients: Any, aggregation_method: Any, colocate_gradients_with_ops: Any
) -> None:
    """Raise an error if one of these arguments is none of its allowed values."""
    if not isinstance(gate_gradients, numbers.Integral) or gate_gradients not in GATES:
        raise ValueError(
            "Argument `gate_gradients` must be one of Optimizer.GATE_NONE, Optimizer.GATE_OP "
            f"and Optimizer.GATE_GRAPH. Received: {gate_gradients!r}"
        )
    whole = isinstance(aggregation_method, numbers.Integral)
    if aggregation_method is not None and not (whole and aggregation_method in (0, 1, 2)):
        raise ValueError(
            "Argument `aggregation_method` must be None or a value of "
            f"tf.AggregationMethod, 0 to 2. Received: {aggregation_method!r}"
        )
    check_bool("colocate_gradients_with_ops", colocate_gradients_with_ops)


def checked_variables(
    var_list: Any,
    error: type[Exception],
    argument: str = "var_list",
    more: tuple[type, ...] = (),
) -> list[Any]:
    """Return the variables of an argument as a flat list, or raise an error.

    Args:
        var_list: A variable, or lists and dictionaries of variables, which may be nested.
        error: Class of the error.
        argument: Name of the argument, for the message.
        more: Types that are allowed instead of a variable.
    """

    def fits(value: Any) -> bool:
        return backend.is_variable(value) or isinstance(value, more)

    if fits(var_list):
        return [var_list]
    try:
        of_names = isinstance(var_list, Mapping)
        variables = keras.tree.flatten(dict(var_list)) if of_names else list(var_list)
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


def check_precision(pairs: Iterable[tuple]) -> None:
    """Raise an error for a gradient in float64 if its variable has another data type."""
    for gradient, variable in pairs:
        if "float64" not in str(getattr(gradient, "dtype", "")):
            continue
        if "float64" not in str(variable.dtype):
            raise TypeError(
                f"The gradient of {path_of(variable)!r} must be in the variable's data type "
                f"{keras.backend.standardize_dtype(variable.dtype)}. Received: float64"
            )


def check_any_gradient(pairs: Sequence[Any], more: str = "") -> None:
    """Raise an error if no variable has a gradient."""
    if all(gradient is None for gradient, _ in pairs):
        names = [path_of(variable) for _, variable in pairs]
        raise ValueError(
            f"No gradients provided for any variable: of the variables {names}, the loss depends "
            f"on none{more}"
        )


def check_counter(global_step: Any) -> None:
    """Raise an error if `global_step` is neither None nor a variable that can count steps."""
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


def checked_pairs(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """Return pairs of a gradient, of rows as `RowGradient`, and a variable; or raise an error."""
    pairs = check_pairs(tuples_of(grads_and_vars))
    check_precision(pairs)
    if all(is_dense(gradient) for gradient, _ in pairs):
        return pairs
    for pair in pairs:
        if not _is_gradient(pair[0]):
            raise TypeError(
                "Argument `grads_and_vars` must hold gradients that are tensors, row gradients or "
                f"None. Received: {pair[0]!r} for {path_of(pair[1])!r}"
            )
    check_any_gradient(pairs)
    return [(as_named_rows(gradient, variable), variable) for gradient, variable in pairs]


def _is_gradient(value: Any) -> bool:
    if value is None or isinstance(value, (RowGradient, np.ndarray, np.generic)):
        return True
    if isinstance(value, (list, tuple)):
        return all(_is_gradient(item) and item is not None for item in value)
    if isinstance(value, numbers.Real):
        return True
    return ops.is_tensor(value) or all(hasattr(value, name) for name in ("values", "indices"))


def check_loss(loss: Any) -> None:
    """Raise an error if a loss is no function."""
    if not callable(loss):
        raise RuntimeError(
            "Argument `loss` must be a function without arguments that computes the loss: there "
            f"are no graphs to differentiate in. Received: {loss!r}{of_tensorflow(loss)}"
        )


def checked_inputs(inputs: Any) -> tuple:
    """Return the arguments of a loss as a tuple, or raise an error."""
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(
            "Argument `inputs` must be a tuple of the arguments of `loss`, such as (x, y) or (x,). "
            f"Received: {inputs!r}"
        )
    for leaf in keras.tree.flatten(inputs) if inputs else ():
        if backend.is_variable(leaf) or not _is_input(leaf):
            raise TypeError(
                f"Argument `inputs` must hold tensors of Keras's backend {keras.backend.backend()},"
                " arrays and numbers, also in lists, tuples and dictionaries; variables are read "
                f"by `loss` itself. Received: {leaf!r}{of_tensorflow(leaf)}"
            )
    return tuple(inputs)


def _is_input(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind not in "OSU"
    return value is None or isinstance(value, numbers.Number) or ops.is_tensor(value)


def count_up(global_step: Any, steps: Any = 1) -> Any:
    """Add to a counter and return its new value; None without a counter."""
    if global_step is None:
        return None
    global_step.assign_add(ops.cast(steps, global_step.dtype))
    return ops.convert_to_tensor(global_step) + 0  # on PyTorch it would go on counting
