"""Looking rows up in a table, with row gradients for the optimizers that take them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.rows import deliver_rows
from keras_tfopt.execution.select import backend


def look_up(table: keras.Variable, ids: Any) -> Any:
    """`table[ids]`, in the dtype of the table; ids from -rows count from the end.

    Its gradient is dense to whoever asks, but an optimizer of this package gets the rows that were
    looked up, each with its gradient.

    Raises:
        ValueError: for an id out of range, where it is known: not inside of compiled code.
    """
    if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
        ids = ops.cast(ids, "int32")
    rows = table.shape[0]
    limits = backend.limits(ids)
    if limits is not None and (limits[0] < -rows or limits[1] >= rows):
        wrong = limits[1] if limits[1] >= rows else limits[0]
        raise ValueError(
            f"Ids must lie between 0 and {rows - 1}, or from the end between -{rows} and -1: the "
            f"table {table.path!r} has {rows} rows. Received: id {wrong}"
        )
    return backend.look_up(table, ids)


is_dense = backend.is_dense


def exempt_from_rematerialization(layer: keras.layers.Layer) -> None:
    """A lookup keeps nothing that could be computed again, and would lose its row gradients."""
    layer._remat_mode = None


def share_rows(layer: keras.layers.Embedding) -> None:
    """What the table of a layer needs to be: read as it is, whatever the policy; its gradient rows.

    Under mixed precision, Keras would cast all of it for the sake of some rows.
    """
    table = layer._embeddings
    table._autocast = False
    deliver_rows(table)


def forget_compiled(model: keras.Model) -> None:
    """Has a model make its compiled functions anew."""
    for part in [model, *model._flatten_layers(include_self=False)]:
        if isinstance(part, keras.Model):
            part.train_function = part.test_function = part.predict_function = None


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers of a model, those inside of others too."""
    return list(model._flatten_layers())
