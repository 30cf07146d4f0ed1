"""The state of an optimizer, described before there is any, found by name, and its count of steps.

For whoever fills an optimizer from files that were not written by Keras.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.execution.access import slots_of
from keras_tfopt.execution.averages import parts
from keras_tfopt.execution.binding import MASTER, widest
from keras_tfopt.execution.building import describe
from keras_tfopt.execution.checkpoint_files import Content
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.wrapping import WrappingEngine

AVERAGE = "average"


def core(optimizer: Any) -> Any:
    """The rule inside of all wrappers, or None if it is none of this package."""
    *_, last = parts(optimizer)
    return last if isinstance(last, Engine) else None


def described_slots(optimizer: Any, variable: Any) -> dict[str, Content]:
    """What state an optimizer keeps for a variable, or would keep once it is built."""
    found: dict[str, Content] = {}
    for part in parts(optimizer):
        if not isinstance(part, (Engine, WrappingEngine)):
            continue
        like = describe(variable, type(part).__name__)
        if getattr(part, "scope", None) != "model":
            for name, slot in part.slots(like).items():
                shape = tuple(d for d in slot.shape if d is not None)
                found[name] = Content(shape, slot.dtype or like.dtype)
        if isinstance(part, Engine) and part.use_ema:
            found[AVERAGE] = Content(like.shape, like.dtype)
        if isinstance(part, Engine) and part.master_weights and dtype_of(variable) != like.dtype:
            found[MASTER] = Content(like.shape, like.dtype)
    return found


def shared_slots(optimizer: Any, variables: Sequence[Any]) -> dict[str, Content]:
    """What state it keeps for these variables together, or would keep."""
    rule = core(optimizer)
    if rule is None or rule.scope != "model":
        return {}
    likes = [describe(variable, type(rule).__name__) for variable in variables]
    entries = sum(math.prod(like.shape) for like in likes)
    dtype = widest([like.dtype for like in likes])
    return {
        name: Content(tuple(entries if d is None else d for d in slot.shape), slot.dtype or dtype)
        for name, slot in rule.slots(likes).items()
    }


def state_at(optimizer: Any, variable: Any, name: str) -> Any:
    """The state called `name` of a variable; of all together, if that is None."""
    if variable is None:
        return core(optimizer).slot(None, name)
    found = slots_of(optimizer, variable)
    if name in found:
        return found[name]
    for part in parts(optimizer):
        if name == AVERAGE and isinstance(part, Engine) and part.use_ema:
            return part._model_variables_moving_average[part._get_variable_index(variable)]
    raise KeyError(name)


def derive(optimizer: Any) -> None:
    """Computes the slots of all variables that follow from the others, which have changed."""
    rule = core(optimizer)
    slots = {name: ops.convert_to_tensor(slot) for name, slot in rule._model_slots.items()}
    for name, value in rule.derived(slots).items():
        rule._model_slots[name].assign(value)


def steps_of(optimizer: Any) -> int:
    """How many steps an optimizer has made; those that accumulate are one."""
    rule = core(optimizer)
    return int(backend.number(rule._iterations)) // (rule.gradient_accumulation_steps or 1)


def is_accumulating(optimizer: Any) -> bool:
    """Whether gradients of a step in progress are kept."""
    rule = core(optimizer)
    return bool(int(backend.number(rule._iterations)) % (rule.gradient_accumulation_steps or 1))


def set_steps(optimizer: Any, steps: int) -> None:
    """Has an optimizer and all around the rule count on from here."""
    micro_steps = core(optimizer).gradient_accumulation_steps or 1
    for part in parts(optimizer):
        if isinstance(part, (Engine, WrappingEngine)):
            part._iterations.assign(steps * micro_steps)


def follows_schedule(optimizer: Any) -> bool:
    """Whether the learning rate, or any other number, depends on the count of steps."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    rule = core(optimizer)
    values = [rule._learning_rate, *rule.hyperparameters().values()]
    return any(isinstance(value, schedule) for value in values)


def dtype_of(variable: Any) -> str:
    """The data type of any variable, as Keras calls it."""
    return keras.backend.standardize_dtype(variable.dtype)


def array_of(variable: Any) -> np.ndarray:
    """A copy of the value of a variable; bfloat16, which NumPy lacks, in float32."""
    value = ops.convert_to_tensor(variable)
    if dtype_of(value) == "bfloat16":
        value = ops.cast(value, "float32")
    return np.array(ops.convert_to_numpy(value))
