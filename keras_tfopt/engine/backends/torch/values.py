"""Variables and numbers on PyTorch, where variables are written in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch import distributed

from keras_tfopt.engine.backends import defaults
from keras_tfopt.engine.backends.torch.compile import in_compiler
from keras_tfopt.engine.backends.torch.private import (
    add_to_all,
    divided_all,
    limited_above,
    limited_below,
    memory_of,
    norm_all,
    scaled_all,
    zero_all,
)
from keras_tfopt.engine.rows import RowGradient, divide_rows, shards_of
from keras_tfopt.engine.state.scopes import in_scope

DTYPES = {"float32": torch.float32, "float64": torch.float64}  # of the arithmetic

SMALL_MATRIX = 1 << 12  # entries; a processor decomposes it before a GPU has begun


def is_on_gpu(tensor: Any) -> bool:
    """Return whether a tensor is on a device where each operation is a launch."""
    return tensor.device.type not in ("cpu", "meta")


def row_shards(rows: int, exchange: Any) -> Any:
    if exchange.size > 1:
        return exchange.row_shards(rows)
    if distributed.is_available() and distributed.is_initialized():
        if distributed.get_world_size() > 1:
            raise ValueError(
                "the workers are not connected: call keras_tfopt.distributed.connect() right after "
                "the imports"
            )
    return None


def add_variable(engine: Any, variable: Any, **options: Any) -> keras.Variable:
    parts = shards_of(variable)
    if parts is not None:
        state = engine.add_variable(**options)
        if options["shape"][:1] == (parts.here,):
            divide_rows(state, parts)
        return state
    shards = engine.shards
    if shards is None or variable is None:
        return engine.add_variable(**options)
    if shards.is_here(variable):
        state = engine.add_variable(**options)
    else:
        with keras.device("meta"):  # a shape without memory
            state = engine.add_variable(**{**options, "initializer": "zeros"})
    shards.register(state, variable)
    return state


def part_of(variable: Any) -> tuple[str, float]:
    parts = shards_of(variable)
    if parts is not None:
        return "axis 0", parts.here / parts.rows
    elsewhere = variable.value.device.type == "meta"
    return ("on another worker", 0.0) if elsewhere else ("whole", 1.0)


def copy_of(variable: Any, dtype: str) -> Any:
    return variable.value.detach().clone().to(getattr(torch, dtype))


def take(variable: Any, indices: Any) -> Any:
    return variable.value.index_select(0, indices)


def commit(writes: list[tuple[Any, Any, Any]]) -> None:
    apart = in_scope()
    if not apart and len(writes) > 1:
        values = unaliased([variable.value for variable, _, _ in writes], [w[2] for w in writes])
        writes = [(v, indices, new) for (v, indices, _), new in zip(writes, values, strict=True)]
    for variable, indices, value in writes:
        if apart:  # the old value belongs to the caller of `stateless_apply`
            new = _write(variable.value.clone(), indices, value)
            variable.assign(new)
        else:
            _write(variable.value, indices, value)


def write_all(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Copy values to tensors, except None; a value may be what another tensor holds."""
    pairs = zip(tensors, values, strict=True)
    new = [(t, value) for t, value in pairs if value is not None and value is not t]
    written = [tensor for tensor, _ in new]
    for tensor, value in zip(written, unaliased(written, [v for _, v in new]), strict=True):
        tensor.copy_(value)


def unaliased(written: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return values such that writing one does not change a later one.

    A rule may return what it was given: the old variable as a slot, or one slot as another.
    """
    memory: set[int] = set()
    kept = []
    for tensor, value in zip(written, values, strict=True):
        if memory_of(value) in memory:
            # In compiled code, Inductor would take a clone for the value itself.
            value = torch.maximum(value, value) if in_compiler.get() else value.clone()
        kept.append(value)
        memory.add(memory_of(tensor))
    return kept


def _write(tensor: Any, indices: Any, value: Any) -> Any:
    """Write to all of a tensor or to rows of it, and return it."""
    if indices is None:
        tensor.copy_(value)
    elif indices.ndim == 0:
        tensor[indices] = value.to(tensor.dtype)
    else:
        tensor.index_copy_(0, indices.long(), value.to(tensor.dtype))
    return tensor


def accumulate(sums: Sequence[Any], gradients: Sequence[Any]) -> None:
    apart = in_scope()
    totals = [variable.value.clone() if apart else variable.value for variable in sums]
    if _are_plain([*totals, *gradients]) and len({*map(id, sums)}) == len(sums):
        add_to_all(totals, gradients)
        return
    for variable, total, gradient in zip(sums, totals, gradients, strict=True):
        if isinstance(gradient, RowGradient):
            total.index_add_(0, gradient.indices, gradient.values)
        else:
            total.add_(gradient)
        if apart:
            variable.assign(total)


def clear(variables: Sequence[Any]) -> None:
    values = [variable.value for variable in variables]
    if values and _are_plain(values):
        zero_all(values)
    else:
        commit([(v, None, torch.zeros_like(x)) for v, x in zip(variables, values, strict=True)])


def move_toward(variable: Any, value: Any, weight: Any) -> None:
    apart = in_scope()
    start = variable.value
    moved = start.clone() if apart else start
    moved.lerp_(value.to(start.dtype), weight)
    if apart:
        variable.assign(moved)


def norm(x: Any) -> Any:
    return torch.linalg.vector_norm(x)


def squared_norms(tensors: Sequence[Any]) -> Any:
    if not tensors:
        return defaults.squared_norms(tensors)
    norms = norm_all(tensors) if _are_plain(tensors) else list(map(norm, tensors))
    return torch.stack(norms).square()


def scale_all(tensors: Sequence[Any], factors: Sequence[Any]) -> list[Any]:
    if not _are_plain(tensors):
        return defaults.scale_all(tensors, factors)
    return list(scaled_all(tensors, factors))


def divide_all(tensors: Sequence[Any], number: int) -> list[Any]:
    if not _are_plain(tensors):
        return defaults.divide_all(tensors, number)
    return list(divided_all(tensors, number))


def limit_all(tensors: Sequence[Any], most: float) -> list[Any]:
    if not _are_plain(tensors):
        return defaults.limit_all(tensors, most)
    return list(limited_above(limited_below(tensors, -most), most))


def _are_plain(tensors: Sequence[Any]) -> bool:
    """Return whether functions of many tensors take these: not transforms of PyTorch, for one."""
    kinds = {*map(type, tensors)}
    return bool(kinds) and not in_scope() and kinds <= {torch.Tensor, torch.nn.Parameter}


def bits_of(x: Any) -> Any:
    return x.view(torch.int32)


def from_bits(bits: Any) -> Any:
    return bits.view(torch.float32)


def lesser(a: Any, b: Any) -> Any:
    if is_on_gpu(a):  # where compiled code compares once more to keep NaN
        return defaults.lesser(a, b)
    return torch.minimum(a, b)  # in compiled code, faster than a comparison


def relu(x: Any) -> Any:
    if is_on_gpu(x):
        return defaults.relu(x)
    return torch.relu(x)  # one instruction; a maximum that keeps NaN takes four


def as_bytes(x: Any) -> Any:
    # With vectors of 256 bits, compiled code converts floats at once, and integers one by one.
    return x.to(torch.float32).to(torch.uint8)


def least_of_lines(x: Any, lines: Sequence[tuple[float, float]]) -> Any:
    return _bent(x, lines, lambda turn, end: -turn * relu(end - x))


def greatest_of_lines(x: Any, lines: Sequence[tuple[float, float]]) -> Any:
    return _bent(x, lines, lambda turn, end: turn * relu(x - end))


def _bent(x: Any, lines: Sequence[tuple[float, float]], beyond: Callable) -> Any:
    """Return the first line, plus how much the others differ from it where they hold.

    In compiled code this takes fewer instructions: `relu` is one, the greater of two numbers three.

    Args:
        x: The numbers.
        lines: The lines.
        beyond: Function of a change of slope, and of the number where that is, which returns by how
            much values of `x` change.
    """
    slope, start = lines[0]
    value = slope * x + start if slope else start
    for (flat, low), (steep, high) in itertools.pairwise(lines):
        value = value + beyond(steep - flat, (low - high) / (steep - flat))
    return value


def limits(tensor: Any) -> tuple[int, int] | None:
    if tensor.numel() == 0 or tensor.device.type == "meta" or torch.compiler.is_dynamo_compiling():
        return None
    low, high = torch.aminmax(tensor)
    return int(low), int(high)


def is_finite(tensor: Any) -> bool | None:
    # The sum takes one pass. If it is not finite, it may have overflowed, so each number is tested.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def all_finite(tensors: Sequence[Any]) -> Any:
    # As for one tensor. On two cores, tests of each number take 6 to 20 times as long as sums.
    sums = torch.stack([tensor.sum().to(torch.float32) for tensor in tensors])
    finite = torch.isfinite(sums).all()
    if bool(finite):
        return finite
    return torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    # Without values, as where a rule is tried, both are alike.
    return true() if getattr(condition, "is_meta", False) or bool(condition) else false()


def lerp(start: Any, end: Any, weight: Any) -> Any:
    return torch.lerp(start, end, weight)  # one pass instead of three


def add_scaled(start: Any, change: Any, factor: Any, reuse: bool = False) -> Any:
    # Large new memory takes longer than the arithmetic.
    out = change if reuse and change.is_contiguous() else None
    return torch.addcmul(start, change, factor, out=out)


def add_product(base: Any, beta: float, left: Any, right: Any, alpha: float) -> Any:
    product = torch.addmm if base.ndim == 2 else torch.baddbmm
    return product(base, left, right, beta=beta, alpha=alpha)


def has_accelerator() -> bool:
    return torch.accelerator.is_available()


def eigh(matrix: Any) -> tuple[Any, Any]:
    if in_compiler.get():
        return torch.linalg.eigh(matrix)
    if is_on_gpu(matrix) and matrix.numel() <= SMALL_MATRIX:
        return tuple(found.to(matrix.device) for found in eigh(matrix.cpu()))
    if matrix.dtype == torch.float64:
        return torch.linalg.eigh(matrix)
    try:
        return torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:
        # MKL may fail in float32 if many rows are zero and the sizes of others differ much.
        values, vectors = torch.linalg.eigh(matrix.double())
        return values.to(matrix.dtype), vectors.to(matrix.dtype)


def combine_rows(weights: Any, rows: Any) -> Any:
    return defaults.combine_rows(weights, rows) if in_compiler.get() else rows.T @ weights


def row_products(rows: Any, vector: Any) -> Any:
    if in_compiler.get():
        # Compiled, this is one loop, which reads the vector once or computes it on the way.
        return torch.stack([(rows[i] * vector).sum() for i in range(rows.shape[0])])
    return rows @ vector


def random_state() -> Any:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all()


def set_random_state(state: Any) -> None:
    torch.set_rng_state(state[0])
    torch.cuda.set_rng_state_all(state[1])
