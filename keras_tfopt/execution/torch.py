"""Rules on PyTorch: elementwise ones compiled over flat buckets, rows by index, all in place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import torch

from keras_tfopt.execution import torch_buckets, torch_compile
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.scopes import in_scope
from keras_tfopt.execution.single import *  # noqa: F403
from keras_tfopt.execution.torch_lookup import LookupGradient, look_up  # noqa: F401
from keras_tfopt.execution.torch_loss import (  # noqa: F401
    check_traceable,
    concretely,
    is_variable,
    loss_and_gradients,
    run_step,
)
from keras_tfopt.execution.torch_pieces import run_in_pieces as run_in_pieces

if TYPE_CHECKING:
    from keras_tfopt.execution.binding import Update
    from keras_tfopt.execution.engine import Engine
    from keras_tfopt.execution.state import Like


# Numbers of a variable in rows that are updated at once: they and what the rule makes of them stay
# in the cache.
PIECE = 1 << 17
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# By the bytes of a number.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def outside_compiler(function: Callable) -> Callable:
    """Keeps a compiled training step from tracing into the engine, which compiles by itself."""
    return torch.compiler.disable(function)


def no_gradients() -> contextlib.AbstractContextManager:
    return torch.no_grad()


def layout(variable: Any, shape: tuple[int, ...]) -> None:
    return None


def copy_of(variable: Any, dtype: str) -> Any:
    return variable.value.detach().clone().to(getattr(torch, dtype))


def own(value: Any) -> Any:
    return value


def with_averages(function: Any, *args: Any) -> Any:
    """Runs a batch on averages."""
    with function.swapped():
        return function.function(*args)


def norm(x: Any) -> Any:
    """Euclidean norm of all of `x`."""
    return torch.linalg.vector_norm(x)


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> None:
    """Calls a function with tensors that have shapes and dtypes, but no values."""
    with torch.no_grad(), keras.device("meta"), contextlib.suppress(NotImplementedError):
        function(*[torch.empty(s, dtype=getattr(torch, d), device="meta") for s, d in given])


def asks_for_value(error: Exception) -> bool:
    """Whether this is what such a tensor raises where its value is asked for."""
    said = str(error)
    return any(
        words in said for words in ("on meta tensors", "meta tensor; no data", "meta device")
    )


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    if isinstance(gradient, LookupGradient):
        return gradient.rows()
    if not isinstance(gradient, torch.Tensor) or gradient.layout != torch.sparse_coo:
        return None
    if gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    return RowGradient._unchecked(gradient._values(), gradient._indices()[0], gradient.shape)


def scale_native(gradient: Any, scale: Any) -> Any:
    return gradient * scale.to(gradient.dtype)


def is_dense(value: Any) -> bool:
    """Whether ids or a gradient are an ordinary tensor, neither sparse nor ragged."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, LookupGradient)
        and value.layout is torch.strided
    )


def is_ready(gradient: Any, variable: Any, like: Like) -> bool:
    """Whether a gradient is one that needs neither check nor conversion."""
    # The checks that this spares cost more than the update of a small variable.
    return (
        is_dense(gradient)
        and gradient.dtype is DTYPES[like.dtype]
        and gradient.shape == like.shape
        and gradient.device == variable._value.device
    )


def limits(tensor: Any) -> tuple[int, int] | None:
    if tensor.numel() == 0 or tensor.device.type == "meta" or torch.compiler.is_compiling():
        return None
    low, high = torch.aminmax(tensor)
    return int(low), int(high)


def is_finite(tensor: Any) -> bool | None:
    """Whether all of it is finite; None where that cannot be known yet."""
    # The sum takes one pass. It may overflow, and then all are looked at.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """The value of one of two functions; the other is not called."""
    return true() if bool(condition) else false()


def combine_rows(weights: Any, rows: Any) -> Any:
    """The sum of the rows of a matrix, each by its weight."""
    if torch.compiler.is_compiling():
        # One loop, with whatever follows; a product would be a call with a result in memory.
        return sum(weights[i] * rows[i] for i in range(rows.shape[0]))
    return rows.T @ weights


def row_products(rows: Any, vector: Any) -> Any:
    """The scalar product of each of some long rows with a vector."""
    if torch.compiler.is_compiling():
        # One loop that reads the vector once, and makes it on the way.
        return torch.stack([(rows[i] * vector).sum() for i in range(rows.shape[0])])
    return rows @ vector


def eigh_is_slow() -> bool:
    """Whether decomposing a matrix takes much longer here than some dozens of products."""
    return False


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    distinct, where = torch.unique(indices, return_inverse=True)
    total = values.new_zeros((distinct.shape[0], *values.shape[1:]))
    return distinct.long(), total.index_add_(0, where, values)


def row_mask(gradient: Any) -> Any:
    """Which rows of the variable a gradient touches, shaped to broadcast over it."""
    if isinstance(gradient, torch.Tensor):
        return nonzero_rows(gradient)
    indices = gradient.indices if gradient.named else gradient.indices[_nonzero(gradient.values)]
    mask = torch.zeros(gradient.shape[0], dtype=torch.bool, device=indices.device)
    mask[indices] = True
    return mask.reshape(-1, *[1] * (len(gradient.shape) - 1))


def nonzero_rows(values: Any) -> Any:
    """Which rows hold anything but zeros, shaped to broadcast over the values."""
    return _nonzero(values).reshape(-1, *[1] * (values.ndim - 1))


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    """The rows for which a mask of `nonzero_rows` holds, and their numbers."""
    indices = torch.nonzero(mask.reshape(-1))[:, 0]
    return values[indices], indices


def to_dense(rows: Any) -> Any:
    return rows.values.new_zeros(rows.shape).index_add_(0, rows.indices, rows.values)


def take(variable: Any, indices: Any) -> Any:
    return variable.value.index_select(0, indices)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Give a gradient to an optimizer that is not ours in a form that it takes."""
    return to_dense(gradient) if hasattr(gradient, "named") else gradient


def commit(engine: Engine, writes: list[tuple[Any, Any, Any]]) -> None:
    """Assigns `(variable, indices, an index or None, value)`."""
    apart = in_scope()
    for variable, indices, value in writes:
        if apart:  # its value is of the caller of `stateless_apply`
            new = _write(variable.value.clone(), indices, value)
            variable.assign(new)
        else:
            _write(variable.value, indices, value)


def _write(tensor: Any, indices: Any, value: Any) -> Any:
    """Writes into a tensor, all of it or rows, and returns it."""
    if indices is None:
        tensor.copy_(value)
    elif indices.ndim == 0:
        tensor[indices] = value.to(tensor.dtype)
    else:
        tensor.index_copy_(0, indices.long(), value.to(tensor.dtype))
    return tensor


def run_in_place(
    engine: Engine, key: Any, function: Callable, variables: Sequence[Any], inputs: Any
) -> Any:
    """Calls `function(values, inputs)`, which returns a result and writes; makes the writes."""
    result, writes = function([read(v) for v in variables], inputs)  # noqa: F405
    commit(engine, [(variables[n], indices, value) for n, indices, value in writes])
    return result


def accumulate(engine: Engine, accumulator: Any, gradient: Any) -> None:
    apart = in_scope()
    total = accumulator.value.clone() if apart else accumulator.value
    if hasattr(gradient, "named"):
        total.index_add_(0, gradient.indices, gradient.values)
    else:
        total.add_(gradient)
    if apart:
        accumulator.assign(total)


def run_if(engine: Engine, condition: Any, step: Callable[[], None]) -> None:
    if bool(condition):
        step()


def execute(engine: Engine, updates: list[Update], scalars: dict[str, dict[str, Any]]) -> None:
    for update in torch_buckets.run_fused(engine, updates, scalars):
        known = scalars[update.kind.dtype]
        if update.kind.mode in ("rows", "touched"):
            _update_rows(engine, update, known)
            continue
        values = [update.variable.value, *(slot.value for slot in update.slots)]
        x, slots = engine.rule_call(update)(
            update.gradient, values[0], values[1:], known, update.mask
        )
        commit(engine, update.writes([x, *slots]))


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    """Gradients of a loss without arguments."""
    with torch.enable_grad():
        values = [variable.value for variable in variables]
        return list(torch.autograd.grad(loss(), values, allow_unused=True))


def place() -> None:
    """Equal for code that is traced together, which all of it is."""
    return None


def compilation(engine: Any) -> str:
    return torch_compile.report(engine)


def _update_rows(engine: Engine, update: Update, scalars: dict[str, Any]) -> None:
    if update.kind.mode == "rows":
        indices, g = update.gradient.indices, update.gradient.values
        if not update.kind.named:
            touched = _nonzero(g)
            indices, g = indices[touched], g[touched]
    else:
        touched = _nonzero(update.gradient)
        if update.mask is not None:
            touched = touched | update.mask
        indices = touched.nonzero().squeeze(1)
        g = update.gradient.index_select(0, indices)
    if indices.numel() == 0:
        return
    values = [update.variable.value, *(slot.value for slot in update.slots)]
    rule, most = engine.rule_call(update), indices.numel()
    if engine.scope == "element" and g.device.type == "cpu":
        most = max(1, PIECE // max(1, math.prod(g.shape[1:])))
    for rows, part in zip(indices.split(most), g.split(most), strict=True):
        old = [v.index_select(0, rows) if c else v for v, c in zip(values, update.cut, strict=True)]
        x, slots = rule(part, old[0], old[1:], scalars)
        commit(engine, update.writes([x, *slots], [rows if c else None for c in update.cut]))


def _nonzero(values: Any) -> Any:
    if values.ndim == 1:
        return values != 0
    rows = values.flatten(1)
    if rows.device.type != "cpu" or rows.numel() == 0:
        return rows.any(1)
    # `any` looks at one number after the other and takes ten times as long. A positive number shows
    # in the largest of the bit patterns taken as integers; where there is none, sums cannot cancel.
    bits = rows.view(INTEGERS[rows.element_size()])
    return (bits.amax(1) > 0) | (rows.sum(1) != 0)
