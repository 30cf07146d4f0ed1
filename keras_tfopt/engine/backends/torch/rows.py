"""Row gradients on PyTorch: gradients of lookups, and sparse tensors."""

from __future__ import annotations

from typing import Any

import torch

from keras_tfopt.engine.backends.torch.lookup import LookupGradient
from keras_tfopt.engine.backends.torch.private import sparse_parts
from keras_tfopt.engine.rows import RowGradient

# Integer dtypes by the number of bytes.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    if isinstance(gradient, LookupGradient):
        return gradient.rows()
    if not isinstance(gradient, torch.Tensor) or gradient.layout != torch.sparse_coo:
        return None
    if gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    return RowGradient.unchecked(*sparse_parts(gradient), gradient.shape, named=False)


def scale_native(gradient: Any, scale: Any) -> Any:
    return gradient * scale.to(gradient.dtype)


def is_dense(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, LookupGradient)
        and value.layout is torch.strided
    )


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    distinct, where = torch.unique(indices, return_inverse=True)
    total = values.new_zeros((distinct.shape[0], *values.shape[1:]))
    return distinct.long(), total.index_add_(0, where, values)


def row_mask(gradient: Any) -> Any:
    if isinstance(gradient, RowGradient):
        indices = gradient.indices if gradient.named else gradient.indices[nonzero(gradient.values)]
        mask = torch.zeros(gradient.shape[0], dtype=torch.bool, device=indices.device)
        mask[indices] = True
    else:
        mask = nonzero(gradient)
    return mask.reshape(-1, *[1] * (len(gradient.shape) - 1))


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    indices = torch.nonzero(mask.reshape(-1))[:, 0]
    return values[indices], indices


def to_dense(rows: Any) -> Any:
    return rows.values.new_zeros(rows.shape).index_add_(0, rows.indices, rows.values)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    return to_dense(gradient) if isinstance(gradient, RowGradient) else gradient


def nonzero(values: Any) -> Any:
    if values.ndim == 1:
        return values != 0
    rows = values.flatten(1)
    if rows.device.type != "cpu" or rows.numel() == 0:
        return rows.any(1)
    # `any` reads one number at a time, and takes ten times as long. Positive numbers have positive
    # bits as integers, so the maximum shows if there is one. Without them, sums cannot cancel.
    bits = rows.view(INTEGERS[rows.element_size()])
    return (bits.amax(1) > 0) | (rows.sum(1) != 0)
