"""Files of `tf.train.Saver`: inspect, restore and write them."""

from keras_tfopt.legacy.checkpoints.inspection import Found, inspect_checkpoint
from keras_tfopt.legacy.checkpoints.loading import load_checkpoint
from keras_tfopt.legacy.checkpoints.report import CheckpointMismatch, Entry, Report
from keras_tfopt.legacy.checkpoints.saving import save_checkpoint

__all__ = [
    "CheckpointMismatch",
    "Entry",
    "Found",
    "Report",
    "inspect_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
