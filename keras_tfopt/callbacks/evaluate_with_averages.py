from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine import AveragedFunction


class EvaluateWithAverages(keras.callbacks.Callback):
    """Run `evaluate`, `predict`, and the validation inside `fit` with averages of the weights.

    They come from the model's optimizer or from one inside of it: `keras_tfopt.MovingAverage`,
    `keras_tfopt.StochasticWeightAveraging`, `keras_tfopt.Lookahead` (its slow weights),
    `keras_tfopt.ScheduleFree`, `keras_tfopt.ScheduleFreeAdamW`, `keras_tfopt.ScheduleFreeSGD`, or
    any with `use_ema=True`. They are in the model while a batch is computed and at no other time:
    training, other callbacks, and whoever looks at the model after an exception or an interrupt see
    the weights themselves, to the bit. On TensorFlow and PyTorch this costs two passes over the
    weights for each batch; `keras_tfopt.averaged` costs them once.

    Args:
        of: The optimizer whose averages are meant, if several inside one another keep some.

    Raises:
        ValueError: when evaluation begins, if there are no averages, none before the first step,
            averages of several optimizers to choose from, or two callbacks of this kind.

    Example:

    >>> averages = keras_tfopt.callbacks.EvaluateWithAverages()
    >>> model.fit(x, y, validation_data=(x_val, y_val), callbacks=[averages])
    >>> model.evaluate(x_val, y_val, callbacks=[averages])

    Differences: `keras.callbacks.SwapEMAWeights` knows `use_ema` only, not inside of wrappers other
    than LossScaleOptimizer, and leaves the averages in the model after `predict` and after
    exceptions. Do not use both at once: it would swap what this one puts in.
    """

    def __init__(self, of: Any = None):
        super().__init__()
        self.of = of
        self._running: dict[str, AveragedFunction] = {}

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Let batches be evaluated with averages from now on."""
        self._begin("test_function", "stop_evaluating")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Let them be evaluated with the weights again."""
        self._running.pop("test_function").remove()

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Let batches be predicted with averages from now on."""
        self._begin("predict_function", "stop_predicting")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Let them be predicted with the weights again."""
        self._running.pop("predict_function").remove()

    def _begin(self, name: str, flag: str) -> None:
        self._running[name] = AveragedFunction(self.model, name, flag, self.of)
