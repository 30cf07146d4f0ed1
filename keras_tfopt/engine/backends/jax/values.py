"""Variables and numbers on JAX, where an assignment replaces the value of a variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tfopt.engine.backends.jax.sharding import layout_of, layout_of_shards, shards
from keras_tfopt.engine.rows import RowGradient, shards_of


def has_accelerator() -> bool:
    return jax.default_backend() != "cpu"


def is_compiled_for_one_cpu(tensor: Any) -> bool:
    """Return whether a tensor belongs to a step that is traced for a CPU without a mesh."""
    is_traced = isinstance(tensor, jax.core.Tracer)
    return is_traced and keras.distribution.distribution() is None and not has_accelerator()


def add_variable(engine: Any, variable: Any, **options: Any) -> keras.Variable:
    shape, distribution = options["shape"], keras.distribution.distribution()
    layout = None
    if variable is not None and shape == tuple(variable.shape):
        layout = layout_of(variable)
    elif distribution is not None:
        layout = keras.distribution.TensorLayout([None] * len(shape), distribution.device_mesh)
    parts = shards_of(variable)
    if parts is not None and shape[:1] == (parts.rows,):
        layout = parts.layout(shape)
    if shards(engine):
        layout = layout_of_shards(variable, layout, shape)
    if layout is not None and not isinstance(options["initializer"], str):
        options["initializer"] = Initial(options["initializer"])
    return engine.add_variable(layout=layout, **options)


class Initial(keras.initializers.Initializer):
    """A function as an object: Keras compiles the `__call__` of initializers of large variables."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return self.function(shape, dtype=dtype)


def copy_of(variable: Any, dtype: str) -> Any:
    # A buffer that two variables share cannot be donated to a compiled step.
    return jnp.array(variable.value, dtype=dtype, copy=True)


def take(variable: Any, indices: Any) -> Any:
    return variable.value.at[indices].get(mode="fill", fill_value=0)


def commit(writes: list[tuple[Any, Any, Any]]) -> None:
    for variable, indices, value in writes:
        if indices is not None:
            value = value.astype(variable.dtype)
            if jnp.ndim(indices) == 0:
                # XLA does this in place. A scatter copies a variable that has other uses.
                value = jax.lax.dynamic_update_index_in_dim(variable.value, value, indices, 0)
            else:
                value = variable.value.at[indices].set(value, mode="drop")
        variable.assign(value)


def accumulate(sums: Sequence[Any], gradients: Sequence[Any]) -> None:
    for variable, gradient in zip(sums, gradients, strict=True):
        if isinstance(gradient, RowGradient):
            total = variable.value.at[gradient.indices].add(gradient.values, mode="drop")
        else:
            total = variable.value + gradient
        variable.assign(total)


def clear(variables: Sequence[Any]) -> None:
    commit([(variable, None, jnp.zeros_like(variable.value)) for variable in variables])


def move_toward(variable: Any, value: Any, weight: Any) -> None:
    moved = (1 - weight) * variable.value + weight * value.astype(variable.dtype)
    commit([(variable, None, moved)])


def norm(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def bits_of(x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, "int32")


def from_bits(bits: Any) -> Any:
    return jax.lax.bitcast_convert_type(bits, "float32")


def limits(tensor: Any) -> tuple[int, int] | None:
    if isinstance(tensor, jax.core.Tracer) or tensor.size == 0:
        return None
    array = np.asarray(tensor)  # within a traced condition, JAX would trace even known values
    return int(array.min()), int(array.max())


def is_finite(tensor: Any) -> bool | None:
    return None if isinstance(tensor, jax.core.Tracer) else bool(jnp.all(jnp.isfinite(tensor)))


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, true, false)
    return true() if bool(condition) else false()


def while_loop(condition: Callable[..., Any], body: Callable[..., tuple], state: tuple) -> tuple:
    if any(isinstance(value, jax.core.Tracer) for value in state):
        return jax.lax.while_loop(lambda now: condition(*now), lambda now: body(*now), state)
    while bool(condition(*state)):  # JAX would compile a loop anew each time
        state = body(*state)
    return state


def row_products(rows: Any, vector: Any) -> Any:
    return rows @ vector
