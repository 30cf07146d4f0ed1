"""Callbacks for `fit`, `evaluate` and `predict`."""

from keras_tfopt.callbacks.swap_ema_weights import SwapEMAWeights

__all__ = ["SwapEMAWeights"]
