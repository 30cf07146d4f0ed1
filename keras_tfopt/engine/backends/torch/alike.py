"""Call a function once for many small tensors, on PyTorch, where each call takes longer than they.

`torch.vmap` makes a function of stacked tensors from one of single tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from keras_tfopt.engine.backends import defaults
from keras_tfopt.engine.backends.torch.values import is_on_gpu
from keras_tfopt.engine.settings import in_plain
from keras_tfopt.engine.state.scopes import in_scope

# Elements of a tensor at most that is worth a copy, on a processor and on a GPU.
SMALL, SMALL_ON_GPU = 1 << 14, 1 << 20


def map_alike(
    engine: Any,
    name: str,
    of: Callable[[Any], Callable[..., list[Any]]],
    keys: Sequence[Any],
    each: Sequence[tuple],
) -> list[list[Any]]:
    refused = ("one by one", name)
    if in_plain.get() or in_scope() or len(each) < 2 or refused in engine._fast:
        return defaults.map_alike(engine, name, of, keys, each)
    alike: dict[tuple, list[int]] = {}
    for number, (key, tensors) in enumerate(zip(keys, each, strict=True)):
        kinds = [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]
        alike.setdefault((key, *kinds), []).append(number)
    found: list[Any] = [None] * len(each)
    for (key, *_), numbers in alike.items():
        function, members = of(key), [each[number] for number in numbers]
        if len(members) == 1 or not all(map(_is_small, members[0])):
            results = [function(*tensors) for tensors in members]
        else:
            try:
                results = _at_once(function, members)
            except RuntimeError:  # one that decides by values, for instance
                engine._fast[refused] = True
                return defaults.map_alike(engine, name, of, keys, each)
        for number, result in zip(numbers, results, strict=True):
            found[number] = result
    return found


def _is_small(tensor: Any) -> bool:
    if tensor is None:
        return True
    most = SMALL_ON_GPU if is_on_gpu(tensor) else SMALL
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.numel() <= most


def _at_once(function: Callable[..., list[Any]], members: list[tuple]) -> list[list[Any]]:
    """Return the results of a function for tensors that are alike."""
    is_none: list[bool] = []

    def tensors_of(*tensors: Any) -> tuple:
        result = function(*tensors)
        is_none[:] = [one is None for one in result]
        return tuple([one for one in result if one is not None])

    columns = list(zip(*members, strict=True))
    stacked = [None if column[0] is None else torch.stack(column) for column in columns]
    axes = tuple([None if one is None else 0 for one in stacked])
    results = iter(torch.vmap(tensors_of, axes, randomness="different")(*stacked))
    nothing = [None] * len(members)
    parts = [nothing if none else next(results).unbind() for none in is_none]
    return [list(one) for one in zip(*parts, strict=True)]
