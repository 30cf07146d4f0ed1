from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import keras

from keras_tfopt.engine import averaged


class AveragesCheckpoint(keras.callbacks.ModelCheckpoint):
    """Save averages of the weights, under the names of the weights.

    A model that is loaded from the file has the averages as its weights, and needs no optimizer for
    them. The model in training keeps its weights. `EvaluateWithAverages` says which optimizers keep
    averages; with both callbacks, `save_best_only` compares what is saved. To continue training
    after an interruption, save the weights as well, by `keras.callbacks.ModelCheckpoint` or
    `BackupAndRestore`.

    Args:
        filepath: Path of the file, as in `keras.callbacks.ModelCheckpoint`.
        of: The optimizer whose averages to save, if several nested ones keep some.
        **options: Those of `keras.callbacks.ModelCheckpoint`.

    Example:

    >>> checkpoint = keras_tfopt.callbacks.AveragesCheckpoint(
    ...     "best.weights.h5", save_weights_only=True, save_best_only=True
    ... )

    Differences: the `swapping_saver` of `tf.contrib.opt.MovingAverageOptimizer` also writes the
    weights, under the names of the averages. A file of the whole model has the optimizer's state
    unchanged here.
    """

    def __init__(self, filepath: Any, of: Any = None, **options: Any):
        if not isinstance(filepath, (str, os.PathLike)):
            raise TypeError(f"Argument `filepath` must be a path. Received: {filepath!r}")
        super().__init__(filepath, **options)
        self.of = of

    @property
    def model(self) -> Any:
        """Return the model, which saves its averages."""
        model = super().model
        return SavedWithin(model, functools.partial(averaged, model, of=self.of))


class SavedWithin:
    """Stand for a model, and save it within a context.

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
