"""The callback of TensorFlow Addons that saves averages of the weights."""

from __future__ import annotations

from typing import Any

from keras_tfopt.addons.classes import Averaged
from keras_tfopt.callbacks import AveragesCheckpoint
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
        return _Updated(saving) if self.update_weights else saving


class _Updated:
    """Wrap a model that saves averages: after saving, assign them to its weights."""

    def __init__(self, saving: Any):
        self._saving = saving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saving, name)

    def save(self, *args: Any, **options: Any) -> None:
        self._saving.save(*args, **options)
        self._update()

    def save_weights(self, *args: Any, **options: Any) -> None:
        self._saving.save_weights(*args, **options)
        self._update()

    def _update(self) -> None:
        keeper = next(p for p in parts(self._saving.optimizer) if isinstance(p, Averaged))
        sync(self._saving)
        assign_averages(keeper, self._saving.trainable_variables)
