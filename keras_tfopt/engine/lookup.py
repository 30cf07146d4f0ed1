"""Look up rows in a table, with row gradients for optimizers that take them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.keras_private import layers_in, read_uncast, table_of
from keras_tfopt.engine.rows import deliver_rows, divide_rows, shards_of


def look_up(table: keras.Variable, ids: Any) -> Any:
    """Return `table[ids]`, in the dtype of the table. Ids from -rows to -1 count from the end.

    Its gradient is a dense tensor. An optimizer of this package gets the rows that were looked up
    with it, each with its gradient.

    Raises:
        ValueError: for an id out of range, except inside compiled code, where ids are not known.
    """
    if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
        ids = ops.cast(ids, "int32")
    shards = shards_of(table)
    rows = table.shape[0] if shards is None else shards.rows
    limits = backend.limits(ids)
    if limits is not None and (limits[0] < -rows or limits[1] >= rows):
        wrong = limits[1] if limits[1] >= rows else limits[0]
        raise ValueError(
            f"Ids must lie between 0 and {rows - 1}, or from the end between -{rows} and -1: the "
            f"table {table.path!r} has {rows} rows. Received: id {wrong}"
        )
    return backend.look_up(table, ids)


is_dense = backend.is_dense


def share_rows(layer: keras.layers.Embedding) -> None:
    """Make gradients of the layer's table the rows looked up, and read it in its own dtype."""
    table = table_of(layer)
    read_uncast(table)  # under mixed precision, Keras would cast all of it
    deliver_rows(table)


def divided_table(layer: keras.layers.Embedding, shards: Any) -> keras.Variable:
    """Create the table of an embedding layer, divided by rows over devices or workers."""
    shape = (shards.here, layer.output_dim)
    with keras.name_scope(layer.name, caller=layer):
        table = keras.Variable(
            shards.initializer(layer.embeddings_initializer),
            shape=shape,
            dtype=layer.variable_dtype,
            autocast=False,  # under mixed precision, Keras would cast all of it
            layout=shards.layout(shape),
            name="embeddings",
        )
    deliver_rows(table)
    divide_rows(table, shards)
    return table


def forget_compiled(model: keras.Model) -> None:
    """Drop the compiled functions of a model, so that it compiles them again."""
    for part in layers_in(model):
        if isinstance(part, keras.Model):
            part.train_function = part.test_function = part.predict_function = None
