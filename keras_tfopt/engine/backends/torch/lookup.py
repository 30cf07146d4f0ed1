"""Look rows up on PyTorch, with gradients that our optimizers can read as rows."""

from __future__ import annotations

from typing import Any

import torch

from keras_tfopt.engine.backends.torch.private import (
    empty_subclass,
    in_data_parallel,
    replace_all,
    written_arguments,
)
from keras_tfopt.engine.rows import RowGradient, shards_of

aten = torch.ops.aten


def look_up(table: Any, ids: Any) -> Any:
    value, shards = table.value, shards_of(table)
    if shards is not None:
        if shards.rows > torch.iinfo(ids.dtype).max:
            ids = ids.long()
        ids = torch.where(ids < 0, ids + shards.rows, ids)
        if ids.device.type == "meta":  # Keras infers shapes
            return value.new_empty((*ids.shape, *value.shape[1:]), device="meta")
        return _look_up_elsewhere(value, ids, shards)
    ids = torch.where(ids < 0, ids + value.shape[0], ids)
    if torch.is_grad_enabled() and value.requires_grad:
        return _look_up(value, ids)
    return torch.nn.functional.embedding(ids, value)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Any, ids: Any) -> Any:
        ctx.save_for_backward(ids)
        ctx.shape = tuple(table.shape)
        return torch.nn.functional.embedding(ids, table)

    @staticmethod
    @torch.compiler.disable  # Dynamo would trace it when it runs, and read saved tensors twice
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, values: Any) -> tuple:
        (ids,) = ctx.saved_tensors
        values = values.reshape(-1, *ctx.shape[1:])
        return LookupGradient([(ids.reshape(-1), values)], ctx.shape), None


_look_up = torch.compiler.disable(_Lookup.apply)


@torch.compiler.disable
def _look_up_elsewhere(value: Any, ids: Any, shards: Any) -> Any:
    if in_data_parallel():
        raise ValueError(
            "torch's DistributedDataParallel makes all variables equal on all workers, also the "
            "rows of tables with shard='rows': use keras_tfopt.distributed.ShardedState instead"
        )
    return _DividedLookup.apply(value, ids, shards)


class _DividedLookup(torch.autograd.Function):
    """A lookup in a table of which each worker has some rows."""

    @staticmethod
    def forward(ctx: Any, table: Any, ids: Any, shards: Any) -> Any:
        distinct, where = torch.unique(ids, return_inverse=True)
        places, counts, own = shards.ask(distinct)
        rows = shards.answer(table.detach().index_select(0, places), counts, own)
        ctx.save_for_backward(where, places)
        ctx.shards, ctx.counts, ctx.own, ctx.shape = shards, counts, own, tuple(table.shape)
        return torch.nn.functional.embedding(where, rows)

    @staticmethod
    @torch.compiler.disable
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, values: Any) -> tuple:
        where, places = ctx.saved_tensors
        values = values.reshape(-1, *ctx.shape[1:])
        total = values.new_zeros((sum(ctx.own), *ctx.shape[1:]))
        total.index_add_(0, where.reshape(-1), values)
        means = ctx.shards.give_back(total, ctx.counts, ctx.own)
        return DividedGradient([(places, means)], ctx.shape), None, None


class LookupGradient(torch.Tensor):
    """The gradient of lookups in a table: a dense tensor that is computed if something reads it.

    Sums of such gradients and products with numbers are such gradients. All other operations, as in
    optimizers of PyTorch and Keras, use the dense tensor.
    """

    pieces: list[tuple[Any, Any]] | None  # ids and values; None once the dense tensor was written
    dense: Any  # None until it is read

    @staticmethod
    def __new__(cls, pieces: list[tuple[Any, Any]], shape: tuple[int, ...]) -> Any:
        made = empty_subclass(cls, shape, pieces[0][1])
        made.pieces, made.dense = pieces, None
        return made

    def rows(self) -> RowGradient | None:
        """Return the looked-up ids and the gradient of each; None if it was written to."""
        if self.pieces is None:
            return None
        if len(self.pieces) == 1:  # `cat` would copy them
            ((ids, values),) = self.pieces
        else:
            ids, values = map(torch.cat, zip(*self.pieces, strict=True))
        return RowGradient.unchecked(values, ids, self.shape, named=False)

    def to_plain(self) -> Any:
        """Return the dense tensor."""
        if self.dense is None:
            assert self.pieces is not None
            values = self.pieces[0][1]
            self.dense = values.new_zeros(self.shape)
            for ids, part in self.pieces:
                self.dense.index_add_(0, ids, part)
        return self.dense

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        lazy = _lazily(function, args, kwargs)
        if lazy is not None:
            return lazy
        for one in written_arguments(function, args, LookupGradient):
            one.to_plain()
            one.pieces = None
        args, kwargs = replace_all(LookupGradient, lambda one: one.to_plain(), (args, kwargs))
        return function(*args, **kwargs)

    # Methods that read memory without the dispatcher.

    def numpy(self, **kwargs: Any) -> Any:
        return self.to_plain().numpy(**kwargs)

    def tolist(self) -> Any:
        return self.to_plain().tolist()

    def data_ptr(self) -> int:
        return self.to_plain().data_ptr()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.to_plain().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> Any:
        return self.to_plain().clone()

    def __repr__(self, **kwargs: Any) -> str:
        return repr(self.to_plain())


class DividedGradient(LookupGradient):
    """The gradient of lookups in a table of which each worker has some rows; it is never dense."""

    def to_plain(self) -> Any:
        raise ValueError(
            "The gradient of a table with shard='rows' is one of rows only: use an optimizer of "
            "keras_tfopt whose row gradients touch rows only, inside of "
            "keras_tfopt.distributed.ShardedState. Nothing has been changed"
        )

    def __repr__(self, **kwargs: Any) -> str:
        return f"DividedGradient({tuple(self.shape)})"


def _lazily(function: Any, args: tuple, kwargs: dict) -> LookupGradient | None:
    """Return the result of an operation if it is such a gradient again, else None."""
    first, pieces = args[0], None
    if not isinstance(first, LookupGradient) or first.pieces is None:
        return None
    if function in (aten.detach.default, aten.alias.default):
        pieces = first.pieces
    elif function in (aten.add.Tensor, aten.add_.Tensor) and not kwargs:
        other = args[1]
        if isinstance(other, LookupGradient) and other.pieces is not None:
            pieces = [*first.pieces, *other.pieces]
            if function is aten.add_.Tensor:
                first.pieces, first.dense = pieces, None
                return first
    elif function in (aten.mul.Tensor, aten.div.Tensor):
        factor = args[1]
        if not isinstance(factor, torch.Tensor) or factor.ndim == 0:
            pieces = [(ids, function(values, factor)) for ids, values in first.pieces]
    return None if pieces is None else type(first)(pieces, tuple(first.shape))
