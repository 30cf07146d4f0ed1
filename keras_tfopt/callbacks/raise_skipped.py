from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.checks import check_integer
from keras_tfopt.engine import parts


class RaiseSkipped(keras.callbacks.Callback):
    """Stop training after too many steps in a row with gradients that are not finite.

    Compiled steps cannot raise errors. This callback asks `keras_tfopt.SkipNonFinite` how many
    steps it has skipped, and raises its `FloatingPointError` if they are more than its
    `max_consecutive`.

    Args:
        every: Number of batches between two checks, integer >= 1; each check waits for the device.
            The end of an epoch has a check, too. Defaults to 100.

    Example:

    >>> optimizer = keras_tfopt.SkipNonFinite("adam", max_consecutive=10)
    >>> model.compile(optimizer, "mse")
    >>> model.fit(x, y, callbacks=[keras_tfopt.callbacks.RaiseSkipped()])
    """

    def __init__(self, every: int = 100):
        super().__init__()
        self.every = check_integer("every", every, 1)
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Check how many steps were skipped, every so many batches."""
        self._batches += 1
        if self._batches % self.every == 0:
            self.on_epoch_end(0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Check how many steps were skipped."""
        for part in parts(self.model.optimizer):
            if hasattr(part, "raise_late_errors"):
                part.raise_late_errors()
