"""The callback of TensorFlow Addons that saves averages of the weights."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from keras_tfopt.addons.classes import Averaged
from keras_tfopt.callbacks.averages_checkpoint import AveragesCheckpoint, SavedWithin
from keras_tfopt.checks import check_bool
from keras_tfopt.engine import assign_averages, parts, sync


class AverageModelCheckpoint(AveragesCheckpoint):
    """Save averages of the weights, and assign them to the weights if `update_weights` is True.

    Args:
        update_weights: Whether the averages are assigned to the weights each time that the model is
            saved.
        filepath: Path of the file. It and all that follow are as in
            `keras.callbacks.ModelCheckpoint`.
        monitor: The metric that tells the best model. Defaults to "val_loss".
        verbose: 0 or 1. Defaults to 0.
        save_best_only: Whether only the best is saved. Defaults to False.
        save_weights_only: Whether weights are saved, not the model. Defaults to False.
        mode: "auto", "min" or "max". Defaults to "auto".
        save_freq: "epoch", or a number of batches. Defaults to "epoch".
        **kwargs: Further arguments of `keras.callbacks.ModelCheckpoint`.

    Raises:
        TypeError: when training begins, if the optimizer is neither `MovingAverage` nor `SWA`.

    Differences: with `save_best_only`, the original assigns averages in each epoch, saved or not.
    """

    def __init__(
        self,
        update_weights: bool,
        filepath: str,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        **kwargs: Any,
    ):
        self.update_weights = check_bool("update_weights", update_weights)
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=save_best_only,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
            **kwargs,
        )

    def set_model(self, model: Any) -> None:
        """Take the model, whose optimizer must keep averages."""
        super().set_model(model)
        if not any(isinstance(part, Averaged) for part in parts(model.optimizer)):
            raise TypeError(
                "AverageModelCheckpoint needs an optimizer that is `MovingAverage` or `SWA` of "
                "keras_tfopt.addons; of others, keras_tfopt.callbacks.AveragesCheckpoint saves "
                f"averages. Received: {model.optimizer!r}"
            )

    @property
    def model(self) -> Any:
        """Return the model, whose methods of saving write averages."""
        saving = super().model
        if not self.update_weights:
            return saving
        return SavedWithin(saving, functools.partial(_averages_assigned, saving))


@contextlib.contextmanager
def _averages_assigned(model: Any) -> Iterator[None]:
    """Assign averages to the weights of a model at the end of this context."""
    yield
    keeper = next(p for p in parts(model.optimizer) if isinstance(p, Averaged))
    sync(model)
    assign_averages(keeper, model.trainable_variables)
