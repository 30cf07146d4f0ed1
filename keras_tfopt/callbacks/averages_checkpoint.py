from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine import averaged


class AveragesCheckpoint(keras.callbacks.ModelCheckpoint):
    """Save averages of the weights, under the names of the weights.

    What is loaded from the file is a model with the averages for weights, which needs no optimizer
    to be of use. The model in training keeps its weights. Whose averages they are, see
    `EvaluateWithAverages`; with both, `save_best_only` chooses by what is saved. To go on with
    training after an interruption, save the weights as well, by `keras.callbacks.ModelCheckpoint`
    or `BackupAndRestore`.

    Args:
        filepath: Path of the file, as of `keras.callbacks.ModelCheckpoint`.
        of: The optimizer whose averages are meant, if several inside one another keep some.
        **options: Those of `keras.callbacks.ModelCheckpoint`.

    Example:

    >>> checkpoint = keras_tfopt.callbacks.AveragesCheckpoint(
    ...     "best.weights.h5", save_weights_only=True, save_best_only=True
    ... )

    Differences: the `swapping_saver` of `tf.contrib.opt.MovingAverageOptimizer` also writes the
    weights, under the names of the averages. In a file of the whole model, the optimizer's state
    here is as it is.
    """

    def __init__(self, filepath: Any, of: Any = None, **options: Any):
        super().__init__(filepath, **options)
        self.of = of

    @property
    def model(self) -> Any:
        """Return the model, which saves its averages."""
        return _Averaged(super().model, self.of)


class _Averaged:
    """Stand for a model, and save its averages."""

    def __init__(self, model: Any, of: Any):
        self._model, self._of = model, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, *args: Any, **options: Any) -> None:
        with averaged(self._model, of=self._of):
            self._model.save(*args, **options)

    def save_weights(self, *args: Any, **options: Any) -> None:
        with averaged(self._model, of=self._of):
            self._model.save_weights(*args, **options)
