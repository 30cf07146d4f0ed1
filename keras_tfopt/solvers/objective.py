"""The loss of a model over all of its data, as a function of one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tfopt.solvers.data import Batches
from keras_tfopt.solvers.flat import FlatFunction, Flattening


class Objective:
    """The mean of a loss over batches, each weighted by its size; and its derivatives.

    Args:
        model: The model, which is built.
        loss: What `keras.losses.get` takes; None is the loss that the model computes in `fit`.
        batches: The data.
        flattening: The trainable variables.
        dtype: The dtype of vectors and sums on the host.
    """

    def __init__(self, model: Any, loss: Any, batches: Batches, flattening: Flattening, dtype: str):
        self._batches, self._dtype = batches, dtype
        function = _loss_of(model, loss, flattening.dtype)
        self._function = FlatFunction(function, flattening, model.non_trainable_variables)

    def value(self, x: np.ndarray) -> float:
        """Return the loss at a point, for which no gradient is computed."""
        return self._mean(lambda data: self._function.value(x, data))

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and its gradient at a point."""
        if not self._batches.several:
            ((_, data),) = self._batches
            value, gradient = self._function(x, data)
            return value, gradient.astype(self._dtype)
        total, samples, sums = 0.0, 0, np.zeros(x.shape, self._dtype)
        for size, data in self._batches:
            value, gradient = self._function(x, data)
            total += size * value
            sums += size * gradient.astype(self._dtype)
            samples += size
        return total / samples, sums / samples

    def hessian_product(self, x: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the product of the matrix of second derivatives at a point with a vector."""

        def product(data: Any) -> np.ndarray:
            return self._function.hessian_product(x, direction, data).astype(self._dtype)

        return self._mean(product)

    def _mean(self, function: Callable[[Any], Any]) -> Any:
        """Return the mean of a function of a batch, in which larger batches weigh more."""
        total, samples = 0.0, 0
        for size, data in self._batches:
            total += size * function(data)
            samples += size
        return total / samples

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the matrix of second derivatives at a point."""
        columns = [self.hessian_product(x, unit) for unit in np.eye(len(x), dtype=self._dtype)]
        matrix = np.stack(columns)
        return (matrix + matrix.T) / 2


class _Function(keras.losses.Loss):
    """A function of `(y_true, y_pred)` with the weights and the mean of a loss of Keras."""

    def __init__(self, function: Callable, dtype: str):
        super().__init__(name="loss", reduction=None, dtype=dtype)
        self._of = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._of(y_true, y_pred)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        values = super().__call__(y_true, y_pred, sample_weight)
        # The mean of Keras rounds float64 to float32, except on TensorFlow.
        return keras.ops.sum(values) / keras.ops.cast(keras.ops.size(values), values.dtype)


def check_loss(model: Any, loss: Any, batches: Batches) -> None:
    """Raise an error where there is no loss that can be minimized over the data."""
    overrides = type(model).compute_loss is not keras.Model.compute_loss
    if loss is None and not (overrides or (model.compiled and model.loss is not None)):
        raise ValueError(
            "Argument `loss` must be a loss, where the model is not compiled with one and has no "
            "`compute_loss` of its own. Received: None"
        )
    if loss is not None:
        try:
            keras.losses.get(loss)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "Argument `loss` must be None, the name of a loss, a keras.losses.Loss or a "
                f"function of (y_true, y_pred). Received: {loss!r}"
            ) from error
    if batches.lack_targets and not (loss is None and overrides):
        raise ValueError("Argument `y` must have the targets for the loss. Received: None")
    for one in keras.tree.flatten(model.loss if loss is None else loss):
        reduction = getattr(one, "reduction", None)
        if batches.several and reduction not in (None, "sum_over_batch_size", "mean"):
            raise ValueError(
                "Argument `loss` must have the reduction 'sum_over_batch_size' where the data are "
                f"several batches, as the loss is a mean over them. Received: {reduction!r}"
            )


def _loss_of(model: Any, loss: Any, dtype: str) -> Callable[[Any], Any]:
    """Return the loss of a batch, penalties of layers included."""
    if loss is None:

        def computed(batch: Any) -> Any:
            x, y, sample_weight = batch
            y_pred = model(x, training=False)
            return model.compute_loss(x, y, y_pred, sample_weight, training=False)

        return computed
    found = keras.losses.get(loss)
    of_batch = found if isinstance(found, keras.losses.Loss) else _Function(found, dtype)

    def given(batch: Any) -> Any:
        x, y, sample_weight = batch
        value = of_batch(y, model(x, training=False), sample_weight)
        for penalty in model.losses:
            value = value + keras.ops.cast(penalty, value.dtype)
        return value

    return given
