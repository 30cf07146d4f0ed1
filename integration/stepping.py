"""Ways to apply one step of an optimizer to recorded gradients, per backend and mode."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tfopt
from integration.recordings import Gradient, Rows

Step = Callable[[Sequence[Gradient]], None]
"""Applies one step; variables and optimizer hold the outcome afterwards."""

Way = Callable[[Any, list[Any], bool], Step]
"""Takes a built optimizer, its variables, and whether row gradients are to be passed in the
backend's own form (`NATIVE`) instead of as RowGradient."""

MODES = ("eager", "compiled")
NATIVE = {"tensorflow": "tf.IndexedSlices", "torch": "sparse COO tensors"}


def precision(float64: bool) -> contextlib.AbstractContextManager[Any]:
    """Where to run a case. JAX has float64 on demand only, and users rarely demand it."""
    if float64 and keras.backend.backend() == "jax":
        import jax

        if hasattr(jax, "enable_x64"):
            return jax.enable_x64(True)
        from jax.experimental import enable_x64  # where older versions have it

        return enable_x64()
    return contextlib.nullcontext()


def ways(mode: str) -> dict[str, Way]:
    """The ways to run a mode on the present backend; a case passes if it does in all of them."""
    backend = keras.backend.backend()
    if mode == "eager":
        if backend == "jax":
            return {"eager": functools.partial(_eager, padded=True)}
        # On torch, what runs outside of `plain` is compiled.
        return {"plain": _plain} if backend == "torch" else {"plain": _plain, "eager": _eager}
    if backend == "tensorflow":
        return {
            "tf.function": functools.partial(_tensorflow, jit_compile=False),
            "jit_compile": functools.partial(_tensorflow, jit_compile=True),
        }
    return {"jax.jit": _jax} if backend == "jax" else {"torch.compile": _eager}


def _eager(optimizer: Any, variables: list[Any], native: bool, padded: bool = False) -> Step:
    def step(gradients: Sequence[Gradient]) -> None:
        parts = [_parts(gradient, padded) for gradient in gradients]
        optimizer.apply(_assembled(parts, variables, native), variables)

    return step


def _plain(optimizer: Any, variables: list[Any], native: bool) -> Step:
    eager = _eager(optimizer, variables, native)

    def step(gradients: Sequence[Gradient]) -> None:
        with keras_tfopt.engine.plain():
            eager(gradients)

    return step


def _tensorflow(optimizer: Any, variables: list[Any], native: bool, jit_compile: bool) -> Step:
    import tensorflow as tf

    # As Keras's trainer does it: the number of rows is not known while tracing.
    @tf.function(jit_compile=jit_compile, reduce_retracing=True)
    def compiled(parts: list[Any]) -> None:
        optimizer.apply(_assembled(parts, variables, native), variables)

    def step(gradients: Sequence[Gradient]) -> None:
        compiled([_parts(gradient, padded=jit_compile) for gradient in gradients])

    return step


def _jax(optimizer: Any, variables: list[Any], native: bool) -> Step:
    import jax

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def compiled(values: Any, state: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(state, gradients, values)

    def step(gradients: Sequence[Gradient]) -> None:
        parts = [_parts(gradient, padded=True) for gradient in gradients]
        values, state = compiled(
            [v.value for v in variables],
            [v.value for v in optimizer.variables],
            _assembled(parts, variables, native),
        )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        for variable, value in zip(optimizer.variables, state, strict=True):
            variable.assign(value)

    return step


def _parts(gradient: Gradient, padded: bool) -> Any:
    """Tensors that tf.function takes for arguments, which it does not do with a RowGradient."""
    if gradient is None:
        return None
    if isinstance(gradient, Rows):
        if padded:
            gradient = _padded(gradient)
        return _floats(gradient.values), ops.convert_to_tensor(gradient.indices)
    return _floats(gradient)


def _padded(rows: Rows) -> Rows:
    """The same sums in the same rows, with zeros for the last row up to a multiple of 16 entries.

    XLA compiles anew for each number of rows, on JAX even eagerly: a minute would become ten.
    Training has batches of one size, too. No rows stay no rows.
    """
    missing = -len(rows.indices) % 16
    if not len(rows.indices) or not missing:
        return rows
    indices = np.pad(rows.indices, (0, missing), mode="edge")
    zeros = np.zeros((missing, *rows.values.shape[1:]), rows.values.dtype)
    return Rows(indices, np.concatenate([rows.values, zeros]))


def _floats(array: np.ndarray) -> Any:
    return ops.convert_to_tensor(array, dtype=str(array.dtype))


def _assembled(parts: Sequence[Any], variables: Sequence[Any], native: bool) -> list[Any]:
    return [
        _row_gradient(part, variable.shape, native) if isinstance(part, tuple) else part
        for part, variable in zip(parts, variables, strict=True)
    ]


def _row_gradient(part: tuple[Any, Any], shape: tuple[int, ...], native: bool) -> Any:
    values, indices = part
    if not native:
        return keras_tfopt.RowGradient(values, indices, shape)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.IndexedSlices(values, indices, tf.constant(tuple(shape), indices.dtype))
    import torch

    return torch.sparse_coo_tensor(indices[None], values, tuple(shape), check_invariants=True)
