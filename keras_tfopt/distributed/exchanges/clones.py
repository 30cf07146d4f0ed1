"""Make an optimizer with the same arguments as another one."""

from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine.nesting import check_one, innermost


def center_of(inner: Any, owner: str) -> Any:
    """Return another optimizer with the same arguments, without accumulation and averages."""
    check_one(inner, owner)
    with keras.name_scope("center"):  # paths of variables differ from those of `inner`
        center = clone(inner)
    core = innermost(center)
    core.gradient_accumulation_steps, core.use_ema = None, False
    return center


def clone(optimizer: Any) -> Any:
    """Return another optimizer with the same arguments, which is not built."""
    core = innermost(optimizer)
    rate = core._learning_rate
    if isinstance(rate, keras.Variable):
        return type(optimizer).from_config(optimizer.get_config())
    # A schedule or function may have no configuration, so another schedule replaces it meanwhile.
    core._learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0)
    try:
        made = type(optimizer).from_config(optimizer.get_config())
    finally:
        core._learning_rate = rate
    innermost(made)._learning_rate = rate
    return made
