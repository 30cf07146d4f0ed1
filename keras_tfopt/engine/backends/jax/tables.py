"""Divide tables by rows over the devices of a JAX mesh.

In a lookup, each device gets the ids of all devices. It takes the rows that it has, and zeros for
the others. The sum over the devices has all rows, and each device gets its part of it. An
all-to-all of static shape would move as much, as all ids of a device may be on one other device.
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

# The largest number of rows. Indices of padding are beyond it, and must be int32 as well.
MOST = 2 * 10**9


class MeshRows:
    """The division of a table by rows over the axis of the data of a mesh.

    Args:
        rows: The number of rows of the whole table.
    """

    between_workers = False

    def __init__(self, rows: int):
        distribution = keras.distribution.distribution()
        names, axis = distribution.device_mesh.axis_names, distribution.batch_dim_name
        self.device_mesh, self.axis = distribution.device_mesh, axis
        self.mesh = self.device_mesh.backend_mesh
        self.parts = self.device_mesh.shape[names.index(axis)]
        self.rows = self.here = rows
        self._by_rows, self._on_all = PartitionSpec(axis), PartitionSpec()

    def layout(self, shape: Sequence[int]) -> Any:
        """Return the layout of the table, or of state with an entry for each row."""
        return keras.distribution.TensorLayout(
            [self.axis, *[None] * (len(shape) - 1)], self.device_mesh
        )

    def initializer(self, initializer: Callable[..., Any]) -> Any:
        """Return the initializer of the variable, which has the whole table."""
        return initializer

    def read(self, variable: Any) -> np.ndarray:
        """Return all of a table, or of its state."""
        return np.asarray(variable.value)

    def own(self, array: Any) -> Any:
        """Return the part of a whole table that belongs into the variable: all of it."""
        return array

    def take(self, table: Any, ids: Any) -> Any:
        """Return rows of a table, by ids that all devices have; a row out of range is NaN."""
        flat = ids.reshape(-1)
        is_divisible = flat.shape[0] % self.parts == 0

        def local(part: Any, ids: Any) -> Any:
            place = ids - jax.lax.axis_index(self.axis).astype(ids.dtype) * part.shape[0]
            here = ((place >= 0) & (place < part.shape[0]))[:, None]
            rows = jnp.where(here, part.at[place].get(mode="clip"), 0)
            if is_divisible:
                return jax.lax.psum_scatter(rows, self.axis, tiled=True)
            return jax.lax.psum(rows, self.axis)

        result = self._by_rows if is_divisible else self._on_all
        found = self._on_each(local, (self._by_rows, self._on_all), result)(table, flat)
        outside = (flat < 0) | (flat >= self.rows)
        found = jnp.where(outside[:, None], jnp.nan, found)
        return found.reshape(*ids.shape, *table.shape[1:])

    def everywhere(self, values: Any) -> Any:
        """Return values with the layout that each device has all of them."""
        return jax.lax.with_sharding_constraint(values, NamedSharding(self.mesh, self._on_all))

    def divided(self, values: Any) -> Any:
        """Return a gradient with the layout of the table."""
        return jax.lax.with_sharding_constraint(values, NamedSharding(self.mesh, self._by_rows))

    def update_rows(
        self, step: Callable[..., Any], indices: Any, g: Any, values: list[Any], scalars: Any
    ) -> list[Any]:
        """Run `step(indices, g, values, scalars)` on each device, for the rows that it has.

        Args:
            step: Pure function that returns new values of the table and of its slots.
            indices: Distinct rows in ascending order; all devices have all of them.
            g: Their gradients.
            values: The table and its slots, each with an entry for each row.
            scalars: Arrays, in a dictionary.
        """
        count = indices.shape[0]

        def local(indices: Any, g: Any, values: list[Any], scalars: Any) -> list[Any]:
            part = values[0].shape[0]
            start = jax.lax.axis_index(self.axis).astype(indices.dtype) * part
            # The indices of own rows come first, then all others, moved out of range. All are in
            # ascending order.
            shift = -jnp.searchsorted(indices, start)
            indices, g = jnp.roll(indices, shift), jnp.roll(g, shift, axis=0)
            place = indices - start
            place = jnp.where(place >= 0, place, place + self.rows + count)
            return step(place, g, values, scalars)

        given = self._on_all, self._on_all, self._by_rows, self._on_all
        return self._on_each(local, given, self._by_rows)(indices, g, values, scalars)

    def update_touched(
        self, step: Callable[..., Any], g: Any, mask: Any, values: list[Any], scalars: Any
    ) -> list[Any]:
        """Run `step(g, mask, values, scalars)` on each device, for a dense gradient of its rows."""
        given = self._by_rows, self._by_rows, self._by_rows, self._on_all
        return self._on_each(step, given, self._by_rows)(g, mask, values, scalars)

    def _on_each(self, function: Callable[..., Any], given: Any, result: Any) -> Callable[..., Any]:
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=given, out_specs=result, check_vma=False
        )

    def __deepcopy__(self, memo: dict) -> MeshRows:
        return self  # a mesh has devices, which cannot be copied

    # Layers with equal tables share compiled code, which has this object as a static argument.

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
