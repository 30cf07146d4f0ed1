from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine import check_all_here


class SwapEMAWeights(keras.callbacks.SwapEMAWeights):
    """Evaluate and predict with the averages of an optimizer that has `use_ema=True`.

    The model has the averages during `evaluate`, `predict`, and each epoch's validation. Training
    continues with the trained weights.

    Args:
        swap_on_epoch: Swap at the end of each epoch, too, so that callbacks such as
            `keras.callbacks.ModelCheckpoint` see the averages. Defaults to False.

    Example:

    >>> model.predict(x, callbacks=[keras_tfopt.callbacks.SwapEMAWeights()])

    Raises:
        ValueError: if other workers keep some of the averages, as with
            `keras_tfopt.distributed.ShardedState`.

    Differences: `keras.callbacks.SwapEMAWeights` leaves the averages in the model after `predict`.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the averages in, with `swap_on_epoch`."""
        check_all_here(self.model.optimizer, type(self).__name__)
        super().on_epoch_end(epoch, logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Put the averages in."""
        check_all_here(self.model.optimizer, type(self).__name__)
        super().on_test_begin(logs)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Put the averages in."""
        self.on_test_begin(logs)

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Put the trained weights back."""
        self.on_test_end(logs)
