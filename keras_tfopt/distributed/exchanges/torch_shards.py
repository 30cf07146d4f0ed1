"""State on the worker that owns a variable, by torch.distributed (ZeRO-1)."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.engine import RowGradient
from keras_tfopt.engine.rows import shards_of
from keras_tfopt.engine.step.gradients import sum_repeated


class TorchShards:
    """Knows which worker owns which variable, and makes the exchanges between them.

    gloo has no reduce-scatter of unequal parts. One reduction to each owner sends the same data.

    Args:
        exchange: The connection of the workers.
    """

    def __init__(self, exchange: Any):
        self.exchange, self.rank, self.size = exchange, exchange.rank, exchange.size
        self._owners: dict[int, int] = {}  # by identity, of variables and of their state
        self._loads = [0] * self.size
        self._kept: list[Any] = []  # keeps the owned objects alive, as their identities are keys

    # ---- Who owns what --------------------------------------------------------------------------

    def assign(self, variables: Sequence[Any]) -> None:
        """Give each variable to the worker with the smallest load, the largest variables first."""
        sizes = [math.prod(variable.shape) for variable in variables]
        for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
            owner = self._loads.index(min(self._loads))
            self._loads[owner] += sizes[number]
            self._own(variables[number], owner)

    def register(self, state: Any, variable: Any) -> None:
        """Note that a piece of state belongs to a variable."""
        if self.is_split(variable):
            self._own(state, self.owner_of(variable))

    def owner_of(self, variable: Any) -> int:
        """Return the owner of a variable or of its state; this worker if there is no owner."""
        return self._owners.get(id(variable), self.rank)

    def is_here(self, variable: Any) -> bool:
        """Return whether this worker has a variable or its state."""
        return self.owner_of(variable) == self.rank

    def is_split(self, variable: Any) -> bool:
        """Return whether a variable or its state has an owner."""
        return id(variable) in self._owners

    def _own(self, variable: Any, owner: int) -> None:
        self._owners[id(variable)] = owner
        self._kept.append(variable)

    # ---- Exchanges ------------------------------------------------------------------------------

    @torch.no_grad()
    def mean_gradients(
        self, grads: Sequence[Any], variables: Sequence[Any], everywhere: bool
    ) -> list[Any]:
        """Return mean gradients over the workers, of own variables or, if `everywhere`, of all.

        Row gradients stay row gradients, with the rows of all workers. Gradients of tables that are
        divided by rows are means already, of the rows that this worker has.
        """
        found = dict(enumerate(grads))
        divided = {n for n, variable in enumerate(variables) if shards_of(variable) is not None}
        dense = [
            n for n, g in enumerate(grads) if not isinstance(g, RowGradient) and n not in divided
        ]
        owners = [self.owner_of(variable) for variable in variables]

        def exchange() -> None:
            for owner, members in _groups([(owners[n], grads[n].dtype, n) for n in dense]):
                own = [grads[n] for n in members]
                whole = torch.cat([g.reshape(-1) for g in own])
                if everywhere:
                    distributed.all_reduce(whole)
                else:
                    distributed.reduce(whole, owner)
                if everywhere or owner == self.rank:
                    whole /= self.size
                    found.update(zip(members, flat.parts(whole, own), strict=True))
            for n, g in enumerate(grads):
                if isinstance(g, RowGradient) and n not in divided:
                    values = torch.cat(self._gathered(g.values)) / self.size
                    indices = torch.cat(self._gathered(g.indices))
                    if everywhere or owners[n] == self.rank:
                        rows = RowGradient.unchecked(values, indices, g.shape, named=g.named)
                        found[n] = sum_repeated(rows, None)

        self.exchange.watch(exchange)
        return list(found.values())

    @torch.no_grad()
    def send_variables(self, variables: Sequence[Any]) -> None:
        """Give all workers the values of variables that their owners have."""

        def exchange() -> None:
            values = [variable.value for variable in variables]
            keys = [
                (self.owner_of(variable), value.dtype, n)
                for n, (variable, value) in enumerate(zip(variables, values, strict=True))
            ]
            for owner, members in _groups(keys):
                several = [values[n] for n in members]
                if len(several) == 1 and several[0].is_contiguous():  # in place, without a copy
                    distributed.broadcast(several[0].detach(), owner)
                    continue
                whole = torch.cat([value.reshape(-1) for value in several])
                distributed.broadcast(whole, owner)
                if owner != self.rank:
                    for value, part in zip(several, flat.parts(whole, several), strict=True):
                        value.copy_(part)

        self.exchange.watch(exchange)

    @torch.no_grad()
    def read(self, state: Any) -> Any:
        """Return the value of a piece of state from its owner; all workers must call this."""
        if not self.is_split(state):
            return state.value
        if self.is_here(state):
            value = state.value.detach().contiguous()
        else:
            shape, dtype = tuple(state.shape), state.value.dtype
            value = torch.empty(shape, dtype=dtype, device=exchange_device())
        owner = self.owner_of(state)
        self.exchange.watch(lambda: distributed.broadcast(value, owner), reads=True)
        return value

    @torch.no_grad()
    def norm(self, squares: Any) -> Any:
        """Return the square root of the sum of the vectors of all workers."""
        total = squares.sum(dtype=torch.float64).to(exchange_device())
        self.exchange.watch(lambda: distributed.all_reduce(total))
        return torch.sqrt(total).to(squares.dtype)

    def _gathered(self, tensor: Any) -> list[Any]:
        """Return the tensors of all workers, which may have different numbers of rows."""
        counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(self.size)]
        own = torch.tensor([tensor.shape[0]], device=tensor.device)
        distributed.all_gather(counts, own)
        most = max(int(count) for count in counts)
        padded = tensor.new_zeros((most, *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]


def _groups(keys: Sequence[tuple[int, Any, int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield owners with the numbers of their tensors of one dtype."""
    found: dict[tuple, list[int]] = collections.defaultdict(list)
    for owner, dtype, number in keys:
        found[owner, str(dtype)].append(number)
    for (owner, _), members in sorted(found.items()):
        yield owner, members


def exchange_device() -> str:
    """Return the device of tensors that the process group can exchange."""
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"
