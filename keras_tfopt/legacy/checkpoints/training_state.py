"""Describe the state of an optimizer before it exists, and find it by name.

Reading checkpoints of TensorFlow 1 needs both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine import (
    Engine,
    WrappingEngine,
    array_of,
    average_of,
    dtype_of,
    parts,
    slots_of,
)
from keras_tfopt.engine.state.building import describe
from keras_tfopt.engine.state.state import MASTER, widest
from keras_tfopt.engine.step.slicing import shape_of
from keras_tfopt.legacy.checkpoints.files import Content

AVERAGE = "average"


def core(optimizer: Any) -> Any:
    """Return the rule inside all wrappers, or None if that is an optimizer of Keras."""
    *_, last = parts(optimizer)
    return last if isinstance(last, Engine) else None


def described_slots(optimizer: Any, variable: Any) -> dict[str, Content]:
    """Describe the state that an optimizer keeps for a variable, or will keep once it is built."""
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
    """Describe the state that an optimizer keeps for these variables together, or will keep."""
    rule = core(optimizer)
    if rule is None or rule.scope != "model":
        return {}
    likes = [describe(variable, type(rule).__name__) for variable in variables]
    dtype = widest([like.dtype for like in likes])
    return {
        name: Content(shape_of(slot, likes), slot.dtype or dtype)
        for name, slot in rule.slots(likes).items()
    }


def state_at(optimizer: Any, variable: Any, name: str) -> Any:
    """Return the state called `name` of a variable, or of all together if `variable` is None."""
    if variable is None:
        return core(optimizer).slot(None, name)
    found = {AVERAGE: average_of(optimizer, variable), **slots_of(optimizer, variable)}
    return found[name]


def derive(optimizer: Any) -> None:
    """Compute the derived slots of all variables from the others, which have changed."""
    rule = core(optimizer)
    if rule.scope == "model":
        slots = {name: rule.slot(None, name) for name in rule.slot_names}
        values = {name: ops.convert_to_tensor(slot) for name, slot in slots.items()}
        for name, value in rule.derived(values).items():
            slots[name].assign(value)


def steps_of(optimizer: Any) -> int:
    """Return how many steps an optimizer has made; calls that accumulate are one step."""
    return int(array_of(core(optimizer).iterations))
