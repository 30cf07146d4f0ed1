"""Variables and numbers on TensorFlow, and replicas of `tf.distribute`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.engine.backends.tensorflow.private import in_xla, is_being_created
from keras_tfopt.engine.rows import RowGradient


def native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def read(variable: Any) -> Any:
    return tf.convert_to_tensor(variable)


def is_variable(value: Any) -> bool:
    return isinstance(value, (keras.Variable, tf.Variable, tf.compat.v1.Variable))


lifted = tf.init_scope


def number(variable: Any) -> float:
    with lifted():
        return float(variable.value.numpy())


def copy_of(variable: Any, dtype: str) -> Any:
    # XLA cannot create a variable and its copy in one step, and its own error does not say so.
    value = native(variable)
    if in_xla() and is_being_created(value):
        raise RuntimeError(
            "With `jit_compile=True`, a model must be built before the first step where an "
            "optimizer starts state at the weights, as averages do: call `model.build(shape)`, or "
            f"begin it with a `keras.Input`. Received: {variable.path!r}, which is being created"
        )
    return tf.cast(tf.identity(value), dtype)


def take(variable: Any, indices: Any) -> Any:
    # Gathering from the variable reads only the rows. From its value, it would copy the table.
    return tf.gather(native(variable), indices)


def commit(writes: list[tuple[Any, Any, Any]]) -> None:
    if not writes:
        return
    if replicas() == 1:
        for variable, indices, value in writes:
            assign(native(variable), indices, value)
        return

    def everywhere(strategy: Any, variables: list, indices: list, values: list) -> None:
        for variable, rows, value in zip(variables, indices, values, strict=True):
            strategy.extended.update(variable, assign, args=(rows, value), group=False)

    variables, indices, values = zip(*[(native(v), i, x) for v, i, x in writes], strict=True)
    tf.distribute.get_replica_context().merge_call(
        everywhere, args=(list(variables), list(indices), list(values))
    )


def accumulate(sums: Sequence[Any], gradients: Sequence[Any]) -> None:
    for variable, gradient in zip(sums, gradients, strict=True):
        if isinstance(gradient, RowGradient):
            total = take(variable, gradient.indices) + gradient.values
            commit([(variable, gradient.indices, total)])
        else:
            commit([(variable, None, read(variable) + tf.cast(gradient, variable.dtype))])


def clear(variables: Sequence[Any]) -> None:
    commit([(variable, None, tf.zeros(variable.shape, variable.dtype)) for variable in variables])


def move_toward(variable: Any, value: Any, weight: Any) -> None:
    moved = (1 - weight) * read(variable) + weight * tf.cast(value, variable.dtype)
    commit([(variable, None, moved)])


def assign(variable: Any, indices: Any, value: Any) -> None:
    value = tf.cast(value, variable.dtype)
    if indices is None:
        variable.assign(value)
    else:
        variable.scatter_update(tf.IndexedSlices(value, indices))


def replicas() -> int:
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def once(function: Callable[[], None]) -> None:
    if replicas() == 1:
        function()
    else:
        tf.distribute.get_replica_context().merge_call(lambda strategy: function())


def build_scope(engine: Any, variables: Sequence[Any]) -> contextlib.AbstractContextManager:
    if replicas() > 1:
        return contextlib.nullcontext()
    strategy = engine._distribution_strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise ValueError(
            f"{type(engine).__name__} was created outside of the `tf.distribute.Strategy` in which "
            "it is used. Create the optimizer, too, inside `with strategy.scope():`"
        )
    scopes = contextlib.ExitStack()
    if not tf.executing_eagerly() and _initialized(variables):
        # Within a traced step, state would be initialized again in each step. But if this step also
        # builds the model, there are no values to start from yet. Then `tf.function` itself moves
        # the initialization out of the step, after that of the model.
        scopes.enter_context(lifted())
    scopes.enter_context(strategy.scope())
    return scopes


def _initialized(variables: Sequence[Any]) -> bool:
    with lifted():
        return all(bool(native(variable).is_initialized()) for variable in variables)


def add_variable(engine: Any, variable: Any, **options: Any) -> keras.Variable:
    if variable is None:
        return engine.add_variable(**options)
    with engine._distribution_strategy.extended.colocate_vars_with(native(variable)):
        return engine.add_variable(**options)


def norm(x: Any) -> Any:
    return tf.sqrt(2 * tf.nn.l2_loss(x))


def bits_of(x: Any) -> Any:
    return tf.bitcast(x, tf.int32)


def from_bits(bits: Any) -> Any:
    return tf.bitcast(bits, tf.float32)


def limits(tensor: Any) -> tuple[int, int] | None:
    if not tf.executing_eagerly() or tensor.shape.num_elements() == 0:
        return None
    array = tensor.numpy()
    return int(array.min()), int(array.max())


def is_finite(tensor: Any) -> bool | None:
    if not tf.executing_eagerly():
        return None
    return bool(tf.reduce_all(tf.math.is_finite(tensor)))


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    return tf.cond(condition, true, false)


def row_products(rows: Any, vector: Any) -> Any:
    if rows.shape[0] == 1:  # XLA multiplies with a single core what it adds up with all
        return tf.reduce_sum(rows * vector, axis=1)
    return tf.linalg.matvec(rows, vector)


def has_accelerator() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def eigh_is_slow() -> bool:
    return in_xla() and not has_accelerator()
