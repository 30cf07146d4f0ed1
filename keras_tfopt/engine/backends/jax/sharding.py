"""Divide state over the devices of a JAX mesh, along the axis of the data (ZeRO-1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras

from keras_tfopt.engine.rows import is_looked_up

if TYPE_CHECKING:
    from keras_tfopt.engine.step.moving import Update

# State of fewer values is not divided: exchanging each bias would cost more time than it saves.
SMALLEST = 4096


def sharding_problem() -> str | None:
    distribution = keras.distribution.distribution()
    if distribution is None:
        return (
            "there is no keras.distribution: before the model is made, call "
            "keras.distribution.set_distribution(keras.distribution.DataParallel())"
        )
    axes = distribution.device_mesh.axis_names
    if distribution.batch_dim_name not in axes:
        return (
            f"the mesh has no axis {distribution.batch_dim_name!r} for data, only {list(axes)}: "
            "give `batch_dim_name` of keras.distribution.ModelParallel one of these"
        )
    if jax.process_count() > 1:
        return (
            f"the mesh has devices of {jax.process_count()} processes, which could not save the "
            "state: use the devices of one process"
        )
    return None


def shards(engine: Any) -> bool:
    """Return whether an optimizer keeps its state in shards."""
    return getattr(engine, "shard_state", False) and sharding_problem() is None


def layout_of_shards(variable: Any, layout: Any, shape: Sequence[int]) -> Any:
    """Return the layout of some state, with one more axis divided if possible.

    Args:
        variable: The variable that the state belongs to, or None.
        layout: A `keras.distribution.TensorLayout`, or None for a copy on each device.
        shape: The shape of the state.
    """
    distribution = keras.distribution.distribution()
    mesh, data = distribution.device_mesh, distribution.batch_dim_name
    axes = list(layout.axes) if layout is not None else [None] * len(shape)
    devices = mesh.shape[mesh.axis_names.index(data)]
    if devices > 1 and data not in axes and math.prod(shape) >= SMALLEST:
        order = list(range(len(shape)))
        if variable is None or _is_table(variable):
            # Columns first, so that all devices take part in the update of touched rows.
            order = order[1:] + order[:1]
        for axis in order:
            if axes[axis] is None and shape[axis] and shape[axis] % devices == 0:
                axes[axis] = data
                break
    return keras.distribution.TensorLayout(axes, mesh)


def keep_layouts(owner: Any, variables: Sequence[Any]) -> None:
    if shards(owner):
        for variable in (*variables, *owner.variables):
            variable.assign(placed(variable, variable.value))


def layout_of(variable: Any) -> Any:
    """Return the `keras.distribution.TensorLayout` of a variable; None if there is none."""
    layout, distribution = variable._layout, keras.distribution.distribution()
    if not isinstance(layout, jax.sharding.NamedSharding) or distribution is None:
        return layout
    # Keras 3.12 keeps JAX's own description, which leaves out the last axes if they are whole.
    axes = [*layout.spec, *[None] * (len(variable.shape) - len(layout.spec))]
    return keras.distribution.TensorLayout(axes, distribution.device_mesh)


def placed(variable: Any, value: Any) -> Any:
    """Return a value in the layout of a variable; unchanged if there is no distribution."""
    layout = variable._layout
    return value if layout is None else keras.distribution.distribute_tensor(value, layout)


def rows_placed(variable: Any, value: Any) -> Any:
    """Return some rows of a variable in its layout, except for the axis of the rows."""
    layout = layout_of(variable)
    if layout is None:
        return value
    rows = keras.distribution.TensorLayout([None, *layout.axes[1:]], layout.device_mesh)
    return keras.distribution.distribute_tensor(value, rows)


def split_like_slots(update: Update, values: list[Any]) -> tuple[Any, list[Any]]:
    """Return a dense gradient and the values of an update, divided like the slots.

    Otherwise XLA might gather the slots instead of scattering the gradient.
    """
    shape = tuple(update.variable.shape)
    for slot in update.slots:
        if tuple(slot.shape) == shape and slot._layout is not None:
            return placed(slot, update.gradient), [placed(slot, values[0]), *values[1:]]
    return update.gradient, values


def part_of(variable: Any) -> tuple[str, float]:
    value = variable.value
    pairs = list(zip(value.sharding.shard_shape(value.shape), value.shape, strict=True))
    split = [n for n, (part, whole) in enumerate(pairs) if part != whole]
    if not split:
        return "whole", 1.0
    return ", ".join(f"axis {n}" for n in split), math.prod(part / whole for part, whole in pairs)


def _is_table(variable: Any) -> bool:
    return is_looked_up(variable) or variable.path.endswith("embeddings")
