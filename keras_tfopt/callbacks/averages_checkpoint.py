from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
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
        model = super().model
        return SavedWithin(model, functools.partial(averaged, model, of=self.of))


class SavedWithin:
    """Stand for a model that is saved within a context.

    Args:
        model: The model.
        context: Function that returns the context.
    """

    def __init__(self, model: Any, context: Callable[[], contextlib.AbstractContextManager]):
        self._model, self._context = model, context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, *args: Any, **options: Any) -> None:
        """Save the model."""
        with self._context():
            self._model.save(*args, **options)

    def save_weights(self, *args: Any, **options: Any) -> None:
        """Save the weights of the model."""
        with self._context():
            self._model.save_weights(*args, **options)
