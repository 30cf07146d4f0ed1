"""Callbacks for `fit`, `evaluate` and `predict`."""

from keras_tfopt.callbacks.averages_checkpoint import AveragesCheckpoint
from keras_tfopt.callbacks.evaluate_with_averages import EvaluateWithAverages
from keras_tfopt.callbacks.raise_skipped import RaiseSkipped
from keras_tfopt.callbacks.refresh_batch_normalization import RefreshBatchNormalization
from keras_tfopt.callbacks.swap_ema_weights import SwapEMAWeights

__all__ = [
    "AveragesCheckpoint",
    "EvaluateWithAverages",
    "RaiseSkipped",
    "RefreshBatchNormalization",
    "SwapEMAWeights",
]
