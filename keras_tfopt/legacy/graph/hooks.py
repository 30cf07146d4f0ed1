"""Run the hooks of a wrapper as operations around a step of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework

from keras_tfopt.engine.arguments.hyperparameters import Scalars, scalar
from keras_tfopt.engine.state.state import slots_type
from keras_tfopt.engine.step.moving import OVER_ONE
from keras_tfopt.legacy.graph import backend


def run_hook(
    wrapper: Any,
    hook: str,
    gradient: Any,
    variable: Any,
    values: Mapping[str, Any],
    slots: Mapping[str, Any] | None = None,
    use_locking: bool = False,
) -> Any:
    """Return the operation of a hook on one variable; None if the hook does not reach it.

    Gradients stay as they are: no wrapper of the originals changes them.

    Args:
        wrapper: The wrapper, around any optimizer. It is never built.
        hook: "before" or "after".
        gradient: The gradient of the variable, which names touched rows.
        variable: Variable of TensorFlow.
        values: The values of changing arguments in this step, by name.
        slots: Slots of the wrapper, by name.
        use_locking: Whether assignments take a lock.
    """
    slots, like = slots or {}, backend.like_of(variable)
    reach = wrapper.reach(like)
    if reach is None or hook not in wrapper.defines:
        return None
    rows = backend.distinct(gradient) if reach == "rows" else None
    this_step = wrapper.hooks_alone(values)
    with framework.colocate_with(variable):
        x = backend.read(variable) if rows is None else tf.gather(variable, rows)
        old = {name: backend.read(slot) for name, slot in slots.items()}
        given = this_step.scalars(None, tf.ones([], like.dtype))
        known = {name: scalar(v, like.dtype) for name, v in given.items() if v is not None}
        t = Scalars(known, wrapper.facts(like), rows is not None, OVER_ONE)
        s = slots_type(old)(**old)
        first, second = getattr(this_step, hook)(None, x, s, t)
        new_x, new = (second, {}) if hook == "before" else (first, second)
        writes = [(slots[name], value, None) for name, value in new.items()]
        if new_x is not x:
            writes.append((variable, new_x, rows))
        with tf.control_dependencies([value for _, value, _ in writes]):
            return backend.group(*[backend.write(*one, use_locking) for one in writes])
