from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from keras_tfopt.engine import averaged, layers_in


class RefreshBatchNormalization(keras.callbacks.Callback):
    """Compute the statistics of `BatchNormalization` again, with averages of the weights.

    In training, the layers collect statistics of activations that the weights produce. Averages of
    the weights produce other activations. This callback puts the averages into the model and calls
    it with some batches. Means and variances become the averages of those of the batches. This
    happens at the end of each epoch, and before an evaluation or prediction if there were steps
    since. The statistics stay in the model; layers do not use them in training. In a layer that
    the model calls several times for a batch, later calls have more weight.

    Args:
        batches: Inputs of the model, batch by batch: a list, or another iterable that can be read
            again. Some thousand examples are enough.
        of: The optimizer whose averages to use, if several nested ones keep some.

    Raises:
        ValueError: if there are no batches, if no layer of the model is a `BatchNormalization` that
            collects statistics, or if there are no averages, as `keras_tfopt.averaged` says.

    Example:

    >>> inputs = [x[i : i + 256] for i in range(0, 2048, 256)]
    >>> refresh = keras_tfopt.callbacks.RefreshBatchNormalization(inputs)
    >>> averages = keras_tfopt.callbacks.EvaluateWithAverages()
    >>> model.fit(x, y, validation_data=(x_val, y_val), callbacks=[refresh, averages])

    To save the statistics with the averages, list this callback before
    `keras_tfopt.callbacks.AveragesCheckpoint`. Layers with dropout draw other random numbers than
    without this callback.
    """

    def __init__(self, batches: Iterable[Any], of: Any = None):
        super().__init__()
        if not isinstance(batches, Iterable) or iter(batches) is batches:
            raise TypeError(
                "Argument `batches` must be a list of inputs of the model, or another iterable "
                f"that can be read more than once. Received: {batches!r}"
            )
        self.batches, self.of = batches, of
        self._is_fresh = False

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note that the weights have changed."""
        self._is_fresh = False

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compute statistics if the weights have changed."""
        if not self._is_fresh:
            self._refresh()

    on_predict_begin = on_test_begin

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compute statistics if the weights have changed."""
        self.on_test_begin()

    def _refresh(self) -> None:
        layers = [
            layer
            for layer in layers_in(self.model)
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]
        if not layers:
            raise ValueError(
                "RefreshBatchNormalization needs a model with a trainable BatchNormalization "
                f"layer. Received: {self.model!r}"
            )
        momenta = [layer.momentum for layer in layers]
        number = 0
        try:
            with averaged(self.model, of=self.of):
                for number, batch in enumerate(self.batches, start=1):
                    for layer in layers:
                        layer.momentum = 1 - 1 / number  # so that all batches have equal weight
                        if number == 1:
                            _make_finite(layer.moving_mean)
                            _make_finite(layer.moving_variance)
                    self.model(batch, training=True)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
        if number == 0:
            raise ValueError("Argument `batches` must have at least one batch. Received none")
        self._is_fresh = True


def _make_finite(statistics: keras.Variable) -> None:
    """Replace NaN and infinities, of which even zero times the old statistics would be NaN."""
    values = keras.ops.convert_to_tensor(statistics)
    statistics.assign(keras.ops.where(keras.ops.isfinite(values), values, 1.0))
