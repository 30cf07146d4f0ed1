"""How rules run: the only part that imports a backend or touches Keras-private names."""

from keras_tfopt.execution.averages import AveragedFunction, averaged, parts, sync
from keras_tfopt.execution.building import path_of
from keras_tfopt.execution.configuration import decoded, encoded
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.gradients import clipped_by_global_norm
from keras_tfopt.execution.loss_scaling import LossScalingEngine
from keras_tfopt.execution.options import (
    changes,
    check_savable,
    compile_patterns,
    own_parameters,
)
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.settings import plain
from keras_tfopt.execution.state import Like, Rows, Slot
from keras_tfopt.execution.wrapping import WrappingEngine

__all__ = [
    "AveragedFunction",
    "Engine",
    "Like",
    "LossScalingEngine",
    "RowGradient",
    "Rows",
    "Slot",
    "WrappingEngine",
    "averaged",
    "changes",
    "check_savable",
    "clipped_by_global_norm",
    "compile_patterns",
    "decoded",
    "encoded",
    "own_parameters",
    "parts",
    "path_of",
    "plain",
    "sync",
]
