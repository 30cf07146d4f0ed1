"""Read private state of optimizers, to convert those of Keras to ours and back."""

from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.state.building import path_of


def rate_of(optimizer: Any) -> Any:
    """Return the learning rate of any optimizer: a schedule, a function, or a number."""
    rate = optimizer._learning_rate
    return float(backend.number(rate)) if isinstance(rate, keras.Variable) else rate


def exempt_paths(optimizer: Any) -> list[str] | None:
    """Return the paths of the variables that do not decay in an optimizer.

    It is None if some are exempt and the optimizer is not built, so that it does not know which.
    """
    if optimizer.weight_decay is None:
        return []
    if isinstance(optimizer, Engine):
        some = bool(optimizer._no_decay_patterns)
    else:
        pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
        some = bool(getattr(optimizer, "_exclude_from_weight_decay", None)) or pattern is not None
    if not some or not optimizer.built:
        return None if some else []
    return [path_of(v) for v in optimizer._trainable_variables if not _decays(optimizer, v)]


def _decays(optimizer: Any, variable: Any) -> bool:
    if isinstance(optimizer, Engine):
        return optimizer.entry_of(variable).decays
    return optimizer._use_weight_decay(variable)


def extras_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the state that options keep for each variable: averages and sums of micro-steps."""
    kept: list[dict[str, Any]] = [{} for _ in optimizer._trainable_variables]
    if optimizer.use_ema:
        for one, average in zip(kept, optimizer._model_variables_moving_average, strict=True):
            one["average"] = average
    if optimizer.gradient_accumulation_steps:
        for one, total in zip(kept, optimizer._accumulated_gradients, strict=True):
            one["accumulator"] = total
    return kept


def product_of_momenta(optimizer: Any) -> Any:
    """Return the variable in which Keras's Nadam multiplies the momenta of all steps."""
    return optimizer._u_product


def calls_of(optimizer: Any) -> int:
    """Return the number of steps done; with accumulation, of micro-steps."""
    return int(backend.number(optimizer._iterations))


def set_calls(optimizer: Any, count: int) -> None:
    """Set the number of steps done; with accumulation, of micro-steps."""
    optimizer._iterations.assign(count)
