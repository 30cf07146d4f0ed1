from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.distributed.exchanges import current
from keras_tfopt.engine import (
    divided_table,
    exempt_from_rematerialization,
    forget_compiled,
    is_dense,
    layers_in,
    look_up,
    row_shards,
    shards_of,
    share_rows,
)
from keras_tfopt.rule import register


# Files of weights identify a layer by the name of its class. With another name, they could not be
# exchanged with models that have Keras's layer.
@register
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` whose training step costs only as much as the rows in the batch.

    Its gradient consists of the rows that were looked up. Optimizers of this package whose row
    gradients touch rows only, and wrappers around them, use these rows directly: a step of `fit`
    makes no gradient of the table's size, and reads and writes no other row. Any other optimizer,
    such as one of Keras, gets the dense gradient, in which repeated ids are summed. (With Keras's
    layer on TensorFlow, Keras's optimizers do not sum them.)

    In your own training loop, pass gradients on unchanged: a result computed from them is dense,
    except for products with numbers on PyTorch. On TensorFlow, put the step into a `tf.function`,
    because eager code also computes the dense gradient.

    **Touched** rows are those in the batch, even if their gradient is zero, except for rows whose
    output the loss does not depend on. With Keras's layer, touched rows are those whose gradient is
    not zero. The two differ where ids are masked or weights of samples are zero.

    The gradient is **dense**, and still right, if the table is used for more than lookups, for
    example with tied weights or an `embeddings_regularizer`. On JAX and TensorFlow it is also dense
    if the lookup is inside a loop (a cell of `keras.layers.RNN`) or inside a larger part that is
    rematerialized. In eager code of TensorFlow it is dense if a table has several lookups.
    `keras.optimizers.LossScaleOptimizer` makes it dense on JAX and TensorFlow; under
    `mixed_float16`, wrap the optimizer in `keras_tfopt.LossScaleOptimizer`. PyTorch's
    `DistributedDataParallel` makes it dense, too. Touched rows are then those that are not zero.
    `keras_tfopt.diagnose` says for each table which form it has, and why.

    Args:
        input_dim: Integer > 0, the number of rows.
        output_dim: Integer > 0, the width of a row.
        shard: Keyword only. "rows" divides the table, and its state, by rows over the devices of
            a JAX mesh (`keras.distribution`), or over workers on PyTorch, whose optimizer is then a
            `keras_tfopt.distributed.ShardedState`. A lookup exchanges ids and rows. Files hold the
            whole table. The user guide says which optimizers can move it. Defaults to None: the
            table is whole.
        *args: All further arguments are those of `keras.layers.Embedding`.
        **kwargs: Likewise.

    Input shape: integers, `(batch, ...)`. Output shape: `(batch, ..., output_dim)`.

    Ids count from 0 to `input_dim - 1`, or from the end, from -1 to `-input_dim`.

    Raises:
        ValueError: for an id out of range, in eager calls, and on PyTorch always. In compiled code
            the result depends on the backend: TensorFlow raises an error on a CPU and gives zeros
            on a GPU; XLA (`jit_compile=True`) gives the last row; JAX gives NaN. No row is touched
            then. The next eager step with a row gradient, or `keras_tfopt.callbacks.RaiseSkipped`,
            says how many such ids there were.
        ValueError: with `shard`, when the layer is built, if the table cannot be divided: on
            TensorFlow, on JAX without a `keras.distribution`, or if the number of devices does not
            divide that of rows. A layer that was loaded warns, and keeps its table whole.

    Half precision: under a mixed policy the rows are cast, not the table.

    Files: they have the same weights and names as those of Keras's layer, so `load_weights` loads
    files of either layer into the other. A whole saved model has the layer that it was saved with;
    `swap_embeddings` converts it.

    Example:

    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((8,), dtype="int32"),
    ...         keras_tfopt.layers.Embedding(1_000_000, 64),
    ...         keras.layers.GlobalAveragePooling1D(),
    ...         keras.layers.Dense(1),
    ...     ]
    ... )
    >>> model.compile(optimizer=keras_tfopt.LazyAdam(1e-3), loss="mse")

    Differences from Keras: on JAX, forward-mode differentiation (`jax.jvp`, `jax.jacfwd`) of the
    layer is an error.
    """

    built: bool
    shard: str | None = None  # also of a layer that `swap_embeddings` has converted
    _is_loaded = False

    def __init__(self, *args: Any, shard: str | None = None, **kwargs: Any):
        if shard not in (None, "rows"):
            raise ValueError(f"Argument `shard` must be None or 'rows'. Received: {shard!r}")
        self.shard = shard
        super().__init__(*args, **kwargs)
        if shard is not None:
            self._check_shard()
        # Rematerialization would save no memory here, and lose the row gradients.
        exempt_from_rematerialization(self)

    def build(self, input_shape: Any = None) -> None:
        """Create the table."""
        if self.built:
            return
        shards = None if self.shard is None else self._row_shards()
        if shards is not None:
            self._embeddings = divided_table(self, shards)
            self.built = True
            return
        super().build(input_shape)
        if self.quantization_mode is None:
            share_rows(self)

    def call(self, inputs: Any) -> Any:
        """Return rows of the table by ids."""
        if self.lora_enabled or self.quantization_mode or not is_dense(inputs):
            return super().call(inputs)
        return ops.cast(look_up(self.embeddings, inputs), self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:
        """Write the whole table. If workers have parts of it, all of them must call this."""
        shards = shards_of(self._embeddings) if self.built else None
        if shards is None:
            super().save_own_variables(store)
        else:
            store["0"] = shards.read(self._embeddings)

    def load_own_variables(self, store: Any) -> None:
        """Read the table; a worker takes its own rows."""
        shards = shards_of(self._embeddings) if self.built else None
        if shards is None:
            super().load_own_variables(store)
            return
        shapes = {key: tuple(store[key].shape) for key in store.keys()}
        if shapes != {"0": (self.input_dim, self.output_dim)}:
            raise ValueError(
                f"The layer {self.name!r} takes a table of shape "
                f"{(self.input_dim, self.output_dim)}. Received: {shapes}"
            )
        self._embeddings.assign(shards.own(np.asarray(store["0"])))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; `shard` only if it was given, as Keras's layer has none."""
        config = super().get_config()
        return config if self.shard is None else {**config, "shard": self.shard}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Return the layer. If its table cannot be divided here, it warns and keeps it whole."""
        layer = super().from_config(config)
        layer._is_loaded = True
        return layer

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """Add the matrices of low rank, unless the table is divided."""
        if self.shard is not None:
            raise ValueError("A table with shard='rows' takes no lora. Received: enable_lora(...)")
        super().enable_lora(*args, **kwargs)

    def quantize(self, mode: Any = None, type_check: bool = True, **kwargs: Any) -> None:
        """Quantize the table, unless it is divided. It is not trained any more, as in Keras."""
        if self.shard is not None:
            raise ValueError("A table with shard='rows' cannot be quantized. Received: quantize(.)")
        # Keras refuses subclasses, as their `call` might not know of quantized tables.
        checks = type_check and type(self) is not Embedding
        super().quantize(mode, type_check=checks, **kwargs)

    def _check_shard(self) -> None:
        """Raise an error for arguments with which all devices would need all rows."""
        given = {
            "embeddings_regularizer": self.embeddings_regularizer,
            "embeddings_constraint": self.embeddings_constraint,
            "lora_rank": self.lora_rank,
            "dtype": self.quantization_mode,
        }
        for argument, value in given.items():
            if value is not None:
                raise ValueError(
                    "With shard='rows', a layer sees the rows in the batch only, so that argument "
                    f"`{argument}` cannot be used. Received: {value!r}"
                )

    def _row_shards(self) -> Any:
        """Return how the table is divided here; None if it is whole."""
        try:
            return row_shards(self.input_dim, current())
        except ValueError as error:
            text = f"The layer {self.name!r} has shard='rows', but {error}"
            if not self._is_loaded:
                raise ValueError(f"{text}. Or leave `shard` out. Received: shard='rows'") from error
            warnings.warn(f"{text}. It was loaded so, and keeps its table whole", stacklevel=3)
            return None


def swap_embeddings(model: keras.Model) -> keras.Model:
    """Make each `keras.layers.Embedding` in a model a `keras_tfopt.layers.Embedding`.

    The model is changed in place: layers keep their weights, names and connections, and a compiled
    model keeps its optimizer with all state. Layers of classes derived from Keras's do not change.

    Args:
        model: Any `keras.Model` or layer, built or not.

    Returns:
        The same model.

    Example:

    >>> model = keras_tfopt.layers.swap_embeddings(keras.saving.load_model("model.keras"))
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"Argument `model` must be a keras.Model or a layer. Received: {model!r}")
    for layer in layers_in(model):
        if type(layer) is keras.layers.Embedding:
            layer.__class__ = Embedding
            exempt_from_rematerialization(layer)
            if layer.built and layer.quantization_mode is None:
                share_rows(layer)
    forget_compiled(model)
    return model
