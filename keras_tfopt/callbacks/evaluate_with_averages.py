from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine import AveragedFunction


class EvaluateWithAverages(keras.callbacks.Callback):
    """Run `evaluate`, `predict`, and the validation inside `fit` with averages of the weights.

    The averages come from the model's optimizer or from one inside it: `keras_tfopt.MovingAverage`,
    `keras_tfopt.StochasticWeightAveraging`, `keras_tfopt.Lookahead` (its slow weights),
    `keras_tfopt.ScheduleFree`, `keras_tfopt.ScheduleFreeAdamW`, `keras_tfopt.ScheduleFreeSGD`, or
    any with `use_ema=True`. The model has the averages only while a batch is computed. Training and
    other callbacks see the weights themselves, to the bit, and so does your code after an exception
    or an interrupt; on JAX, Keras needs `model.jax_state_sync()` then. On TensorFlow and PyTorch
    this costs two passes over the weights for each batch; `keras_tfopt.averaged` costs them once.

    Args:
        of: The optimizer whose averages to use, if several nested ones keep some.

    Raises:
        ValueError: when evaluation begins, if there are no averages or no step has been made, if
            several optimizers keep averages of one variable, or if there are two such callbacks.

    Example:

    >>> averages = keras_tfopt.callbacks.EvaluateWithAverages()
    >>> model.fit(x, y, validation_data=(x_val, y_val), callbacks=[averages])
    >>> model.evaluate(x_val, y_val, callbacks=[averages])

    Differences: `keras.callbacks.SwapEMAWeights` only works with `use_ema`, and in no wrapper other
    than LossScaleOptimizer. It leaves the averages in the model after `predict` and after
    exceptions. Do not use both at once: it would swap the averages that this one puts in.
    """

    def __init__(self, of: Any = None):
        super().__init__()
        self.of = of
        self._running: dict[str, AveragedFunction] = {}

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Evaluate batches with averages from now on."""
        self._begin("test_function", "stop_evaluating")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Evaluate batches with the weights again."""
        self._running.pop("test_function").remove()

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Predict batches with averages from now on."""
        self._begin("predict_function", "stop_predicting")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Predict batches with the weights again."""
        self._running.pop("predict_function").remove()

    def _begin(self, name: str, flag: str) -> None:
        self._running[name] = AveragedFunction(self.model, name, flag, self.of)
