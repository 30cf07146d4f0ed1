"""Tables that are divided by rows over workers on torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch import distributed

# Initializers whose numbers depend on all rows, or on how many there are.
_OF_WHOLE_TABLES = (
    keras.initializers.VarianceScaling,
    keras.initializers.Orthogonal,
    keras.initializers.Identity,
)


class WorkerRows:
    """The division of a table over the workers, in parts that differ by at most one row.

    Args:
        exchange: The connection of the workers.
        rows: The rows of the whole table.
    """

    between_workers = True

    def __init__(self, exchange: Any, rows: int):
        self.exchange, self.rows = exchange, rows
        size = exchange.size
        if rows < size:
            raise ValueError(f"{size} workers cannot each have a part of {rows} rows")
        self.starts = [worker * rows // size for worker in range(size + 1)]
        self.start, stop = self.starts[exchange.rank], self.starts[exchange.rank + 1]
        self.here = stop - self.start

    # ---- Variables ------------------------------------------------------------------------------

    def layout(self, shape: Sequence[int]) -> None:
        """Return None: there is no mesh."""
        return None

    def initializer(self, initializer: Any) -> Callable[..., Any]:
        """Return an initializer of this worker's rows.

        Each worker draws from its own seed. If the initializer returns the whole table, it is cut.
        """
        if isinstance(initializer, _OF_WHOLE_TABLES):
            raise ValueError(
                f"{type(initializer).__name__} depends on the size of a table, of which each "
                "worker has a part: use RandomUniform or RandomNormal"
            )
        seed = getattr(initializer, "seed", None)
        if isinstance(seed, keras.random.SeedGenerator):
            seed = int(keras.ops.convert_to_numpy(seed.next())[0]) % 2**31
        if isinstance(seed, int):
            config = {**initializer.get_config(), "seed": seed + self.exchange.rank}
            initializer = type(initializer).from_config(config)

        def own(shape: Any, dtype: Any = None) -> Any:
            values = initializer(shape, dtype=dtype)
            return self.own(values) if values.shape[0] == self.rows else values

        return own

    def own(self, array: Any) -> Any:
        """Return this worker's rows of a whole table."""
        return array[self.start : self.start + self.here]

    @torch.no_grad()
    def read(self, variable: Any) -> np.ndarray:
        """Return a whole table, or its whole state; all workers must call this."""
        own = variable.value.detach().contiguous()
        counts = np.diff(self.starts).tolist()
        parts = [own.new_empty((count, *own.shape[1:])) for count in counts]

        def exchange() -> None:
            for worker, part in enumerate(parts):
                if worker == self.exchange.rank:
                    part.copy_(own)
                distributed.broadcast(part, worker)

        self.exchange.watch(exchange, reads=True)
        return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])

    # ---- Lookups --------------------------------------------------------------------------------

    def ask(self, ids: Any) -> tuple[Any, list[int], list[int]]:
        """Send distinct ids, in ascending order, to the workers that have the rows.

        Returns:
            The positions of the rows that workers ask for here, this one included; the number that
            each worker asks for; and the number that this worker asks of each.
        """
        bounds = torch.tensor(self.starts, dtype=ids.dtype, device=ids.device)
        asked = torch.diff(torch.searchsorted(ids, bounds))
        wanted = torch.empty_like(asked)
        self.exchange.watch(lambda: distributed.all_to_all_single(wanted, asked))
        counts, own = wanted.tolist(), asked.tolist()
        return self._sent(ids, own, counts) - self.start, counts, own

    def answer(self, rows: Any, counts: list[int], own: list[int]) -> Any:
        """Send rows to the workers that asked for them; return those that this one asked for."""
        return self._sent(rows, counts, own)

    def give_back(self, values: Any, counts: list[int], own: list[int]) -> Any:
        """Send gradients of rows to the workers that have the rows; return those received.

        Their sum for each row is the mean gradient of the row over the workers.
        """
        return self._sent(values / self.exchange.size, own, counts)

    def _sent(self, values: Any, counts: list[int], expected: list[int]) -> Any:
        """Send `counts[n]` values to worker n; return `expected[n]` values from each worker n."""
        found = values.new_empty((sum(expected), *values.shape[1:]))
        values = values.contiguous()
        self.exchange.watch(lambda: distributed.all_to_all_single(found, values, expected, counts))
        return found

    def __deepcopy__(self, memo: dict) -> WorkerRows:
        return self  # a connection cannot be copied
