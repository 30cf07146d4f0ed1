"""Defaults for functions of the protocol that a backend does not define itself.

They assume that a process has one copy of each variable, and that whole steps are not compiled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras


def read(variable: Any) -> Any:
    return variable.value


def number(variable: Any) -> float:
    return float(variable.value)


def lifted() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)


def add_variable(engine: Any, variable: Any, **options: Any) -> keras.Variable:
    return engine.add_variable(**options)


def sharding_problem() -> str | None:
    return (
        f"{keras.backend.backend()} has no mesh of JAX. On PyTorch, wrap the optimizer, without "
        "this option, in keras_tfopt.distributed.ShardedState; on TensorFlow, state is not "
        "sharded: set KERAS_BACKEND to jax or torch"
    )


def row_shards(rows: int, exchange: Any) -> Any:
    raise ValueError(
        f"{keras.backend.backend()} divides no tables: set KERAS_BACKEND to jax, and a "
        "keras.distribution; or to torch, with a process for each worker and "
        "keras_tfopt.distributed.connect()"
    )


def keep_layouts(owner: Any, variables: Sequence[Any]) -> None:
    pass


def part_of(variable: Any) -> tuple[str, float]:
    return "whole", 1.0


def once(function: Callable[[], None]) -> None:
    function()


def build_scope(engine: Any, variables: Sequence[Any]) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def replicas() -> int:
    return 1


def reduce_replicas(grads: list[Any]) -> list[Any]:
    return grads


def lesser(a: Any, b: Any) -> Any:
    # XLA compiles this to one instruction, and a minimum that keeps NaN to three.
    return keras.ops.where(a < b, a, b)


def relu(x: Any) -> Any:
    return keras.ops.where(x > 0, x, keras.ops.zeros_like(x))


def as_bytes(x: Any) -> Any:
    return keras.ops.cast(x, "uint8")


def least_of_lines(x: Any, lines: Sequence[tuple[float, float]]) -> Any:
    # XLA compiles each line to two instructions.
    return functools.reduce(lesser, [slope * x + start for slope, start in lines])


def greatest_of_lines(x: Any, lines: Sequence[tuple[float, float]]) -> Any:
    values = [slope * x + start for slope, start in lines]
    return functools.reduce(lambda a, b: keras.ops.where(a > b, a, b), values)


def while_loop(condition: Callable[..., Any], body: Callable[..., tuple], state: tuple) -> tuple:
    return keras.ops.while_loop(condition, body, state)


def combine_rows(weights: Any, rows: Any) -> Any:
    # XLA makes one loop of this and what follows; it would store the result of a matrix product.
    return sum(weights[i] * rows[i] for i in range(rows.shape[0]))


def random_state() -> Any:
    return None


def set_random_state(state: Any) -> None:
    pass


def squared_norms(tensors: Sequence[Any]) -> Any:
    ops = keras.ops
    if not tensors:
        return ops.zeros((0,))
    return ops.stack([ops.sum(ops.square(tensor)) for tensor in tensors])


def scale_all(tensors: Sequence[Any], factors: Sequence[Any]) -> list[Any]:
    pairs = zip(tensors, factors, strict=True)
    return [tensor * keras.ops.cast(factor, tensor.dtype) for tensor, factor in pairs]


def divide_all(tensors: Sequence[Any], number: int) -> list[Any]:
    return [tensor / number for tensor in tensors]


def limit_all(tensors: Sequence[Any], most: float) -> list[Any]:
    limited = []
    for tensor in tensors:
        bound = keras.ops.convert_to_tensor(most, keras.backend.standardize_dtype(tensor.dtype))
        limited.append(keras.ops.clip(tensor, -bound, bound))
    return limited


def lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


def add_scaled(start: Any, change: Any, factor: Any, reuse: bool = False) -> Any:
    return start + factor * change


def add_product(base: Any, beta: float, left: Any, right: Any, alpha: float) -> Any:
    product = left @ right
    return beta * base + (product if alpha == 1 else alpha * product)


def eigh(matrix: Any) -> tuple[Any, Any]:
    return keras.ops.eigh(matrix)


def singular_values(matrix: Any) -> Any:
    return keras.ops.svd(matrix, full_matrices=False, compute_uv=False)


def eigh_is_slow() -> bool:
    return False


def all_finite(tensors: Sequence[Any]) -> Any:
    ops = keras.ops
    return ops.all(ops.stack([ops.all(ops.isfinite(tensor)) for tensor in tensors]))


def compute_scalars(
    engine: Any, attributes: Mapping[str, Any], function: Callable, given: tuple
) -> dict[str, Any]:
    return function(engine.with_attributes(attributes) if attributes else engine, *given)


def map_alike(
    engine: Any,
    name: str,
    of: Callable[[Any], Callable[..., list[Any]]],
    keys: Sequence[Any],
    each: Sequence[tuple],
) -> list[list[Any]]:
    return [of(key)(*tensors) for key, tensors in zip(keys, each, strict=True)]


def run_in_pieces(engine: Any, step: Any, grads: list[Any], scalars: dict[str, Any]) -> bool:
    return False


def as_step(function: Callable) -> Callable:
    return function


def concretely() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def with_averages(function: Any, *args: Any) -> Any:
    with function.swapped():
        return function.function(*args)


class Steps:
    def run(
        self,
        step: Callable[..., Any],
        loss: Callable[..., Any],
        arguments: tuple,
        static: Sequence[Any],
        check: Callable[[], None],
    ) -> Any:
        return step(*arguments)


if not TYPE_CHECKING:  # `import *` takes only functions that are defined here
    __all__ = [n for n, v in dict(vars()).items() if getattr(v, "__module__", None) == __name__]
