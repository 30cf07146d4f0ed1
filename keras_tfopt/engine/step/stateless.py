"""Steps over values instead of variables, as `fit` on JAX makes them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.state.building import path_of


def stateless_apply(
    optimizer: Any, state: Sequence[Any], grads: Sequence[Any], values: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the variables and the state that `optimizer.apply` would assign.

    Args:
        optimizer: A built optimizer.
        state: The values of `optimizer.variables`.
        grads: A gradient for each of the values.
        values: The values of all variables that the optimizer was built for, or of those among them
            that are not frozen.
    """
    if not values:  # all layers are frozen
        return [], [ops.convert_to_tensor(value) for value in state]
    if not optimizer.built or len(values) == len(optimizer._trainable_variables):
        _check_shapes(optimizer, values)
        _warn_of_frozen(optimizer)
        return keras.optimizers.Optimizer.stateless_apply(optimizer, state, grads, values)
    trained = _without_frozen(optimizer, len(values))
    pairs = [*zip(trained, values, strict=True), *zip(optimizer.variables, state, strict=True)]
    with keras.StatelessScope(state_mapping=pairs) as scope:
        optimizer.apply(grads, trained)
    now = scope.get_current_value
    return [now(v) for v in trained], [now(v) for v in optimizer.variables]


def _check_shapes(optimizer: Any, values: Sequence[Any]) -> None:
    """Raise an error for values of other variables than those the optimizer was built for."""
    for variable, value in zip(optimizer._trainable_variables, values, strict=False):
        if tuple(np.shape(value)) != tuple(variable.shape):
            raise ValueError(
                f"{type(optimizer).__name__} was built for other variables: "
                f"{path_of(variable)!r} has shape {tuple(variable.shape)}. Received: a value of "
                f"shape {tuple(np.shape(value))}. Compile the model with a new optimizer"
            )


def _warn_of_frozen(optimizer: Any) -> None:
    frozen = [path_of(v) for v in optimizer._trainable_variables if not v.trainable]
    if frozen:
        warnings.warn(
            f"{type(optimizer).__name__} was built for variables that are frozen now, such as "
            f"{frozen[0]!r}. It gets as many values, without names, and takes them for those of "
            "the variables that it was built for. If other layers are trained than before, compile "
            "the model with a new optimizer",
            stacklevel=4,
        )


def _without_frozen(optimizer: Any, count: int) -> list[Any]:
    """Return the variables that are not frozen, to which `count` values belong."""
    known, name = optimizer._trainable_variables, type(optimizer).__name__
    trained = [v for v in known if v.trainable]
    if count != len(trained):
        raise ValueError(
            f"{name} was built for {len(known)} variables, of which {len(trained)} are not frozen. "
            f"Received: values of {count}. Compile the model with a new optimizer if it trains "
            "other layers than before"
        )
    for part in parts(optimizer):
        reason = None
        if getattr(part, "scope", None) == "model":
            reason = "keeps state of all variables together"
        elif "meet" in getattr(part, "defines", ()):
            reason = "exchanges variables between workers"
        elif part.use_ema:
            reason = "has `use_ema`"
        if reason is not None:
            raise ValueError(
                f"{type(part).__name__} {reason}, so it needs values of all {len(known)} variables "
                f"that it was built for. {count} of them are not frozen, and Keras passes on no "
                "others. Compile the model with a new optimizer"
            )
    return trained
