"""Tables in parts over the devices of a JAX mesh: each device has some of the rows.

In a lookup, each device gets the ids of all devices, finds the rows that it has, and zeros for the
others; a sum over the devices, of which each gets its part, completes them. An all-to-all of static
shape that never drops an id moves as much: all ids of a device may be of one other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_tfopt.engine.backends.jax.sharding import sharding_problem

# Padding has numbers beyond the rows, which must be int32, too.
MOST = 2 * 10**9


class MeshRows:
    """How a table is divided over the axis of the data of a mesh.

    Args:
        rows: The rows of the whole table.
    """

    between_workers = False

    def __init__(self, rows: int):
        distribution = keras.distribution.distribution()
        names, axis = distribution.device_mesh.axis_names, distribution.batch_dim_name
        self.device_mesh, self.axis = distribution.device_mesh, axis
        self.mesh = self.device_mesh.backend_mesh
        self.parts = self.device_mesh.shape[names.index(axis)]
        self.rows = self.here = rows

    def layout(self, shape: Sequence[int]) -> Any:
        """Return the layout of the table, or of state that has something for each row."""
        return keras.distribution.TensorLayout(
            [self.axis, *[None] * (len(shape) - 1)], self.device_mesh
        )

    def initializer(self, initializer: Callable[..., Any]) -> Any:
        """Return what makes the values of a table, from what makes those of a whole one."""
        return initializer

    def read(self, variable: Any) -> np.ndarray:
        """Return all of a table, or of its state."""
        return np.asarray(variable.value)

    def own(self, array: Any) -> Any:
        """Return what a variable of this process has of a whole table: all of it."""
        return array

    def take(self, table: Any, ids: Any) -> Any:
        """Return rows of a table, by ids that all devices have; a row out of range is NaN."""
        flat = ids.reshape(-1)
        divided = flat.shape[0] % self.parts == 0
        own, whole = PartitionSpec(self.axis), PartitionSpec()

        def local(part: Any, ids: Any) -> Any:
            place = ids - jax.lax.axis_index(self.axis).astype(ids.dtype) * part.shape[0]
            here = ((place >= 0) & (place < part.shape[0]))[:, None]
            rows = jnp.where(here, part.at[place].get(mode="clip"), 0)
            if divided:
                return jax.lax.psum_scatter(rows, self.axis, tiled=True)
            return jax.lax.psum(rows, self.axis)

        found = self._on_each(local, (own, whole), own if divided else whole)(table, flat)
        outside = (flat < 0) | (flat >= self.rows)
        found = jnp.where(outside[:, None], jnp.nan, found)
        return found.reshape(*ids.shape, *table.shape[1:])

    def everywhere(self, values: Any) -> Any:
        """Give all devices all of some values."""
        return jax.lax.with_sharding_constraint(values, NamedSharding(self.mesh, PartitionSpec()))

    def divided(self, values: Any) -> Any:
        """Divide a gradient as the table is."""
        layout = NamedSharding(self.mesh, PartitionSpec(self.axis))
        return jax.lax.with_sharding_constraint(values, layout)

    def update_rows(
        self, step: Callable[..., Any], indices: Any, g: Any, values: list[Any], scalars: Any
    ) -> list[Any]:
        """Run `step(indices, g, values, scalars)` on each device, for the rows that it has.

        Args:
            step: Pure function that returns new values of the table and of its slots.
            indices: Distinct rows in ascending order; all devices have all of them.
            g: Their gradients.
            values: The table and its slots, all of which have something for each row.
            scalars: Arrays, in a dictionary.
        """
        count = indices.shape[0]

        def local(indices: Any, g: Any, values: list[Any], scalars: Any) -> list[Any]:
            part = values[0].shape[0]
            start = jax.lax.axis_index(self.axis).astype(indices.dtype) * part
            # First those from the first own row on. Others come after, out of range, still in
            # ascending order.
            shift = -jnp.searchsorted(indices, start)
            indices, g = jnp.roll(indices, shift), jnp.roll(g, shift, axis=0)
            place = indices - start
            place = jnp.where(place >= 0, place, place + self.rows + count)
            return step(place, g, values, scalars)

        own, whole = PartitionSpec(self.axis), PartitionSpec()
        run = self._on_each(local, (whole, whole, own, whole), own)
        return run(indices, g, values, scalars)

    def update_touched(
        self, step: Callable[..., Any], g: Any, mask: Any, values: list[Any], scalars: Any
    ) -> list[Any]:
        """Run `step(g, mask, values, scalars)` on each device, for a dense gradient of its rows."""
        own, whole = PartitionSpec(self.axis), PartitionSpec()
        run = self._on_each(step, (own, own, own, whole), own)
        return run(g, mask, values, scalars)

    def _on_each(self, function: Callable[..., Any], given: Any, result: Any) -> Callable[..., Any]:
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=given, out_specs=result, check_vma=False
        )

    def __deepcopy__(self, memo: dict) -> MeshRows:
        return self  # a mesh has devices, which cannot be copied

    # Two layers of one mesh share compiled code.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshRows) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self.rows, self.axis, self.mesh


def row_shards(rows: int, exchange: Any) -> Any:
    problem = sharding_problem()
    if problem is None and exchange.size > 1:
        problem = (
            f"there are {exchange.size} workers that train apart, each with a table of its own: "
            "leave out keras_tfopt.distributed.connect"
        )
    if problem is not None:
        raise ValueError(problem)
    if rows > MOST:
        raise ValueError(
            f"ids are int32 on JAX, and a table has {MOST} rows at most: make it two tables, or "
            f"set KERAS_BACKEND=torch. Received: {rows} rows"
        )
    found = MeshRows(rows)
    if rows % found.parts:
        more = -(-rows // found.parts) * found.parts
        raise ValueError(
            f"the mesh has {found.parts} devices for the data, which cannot have equal parts of "
            f"{rows} rows: make it {more} rows"
        )
    return found
