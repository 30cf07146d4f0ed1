"""Every optimizer of TensorFlow's past on every backend of Keras 3."""

from keras_tfopt import callbacks
from keras_tfopt._version import __version__
from keras_tfopt.algorithm import (
    Algorithm,
    check_bool,
    check_global_step,
    check_hyperparameter,
    check_integer,
    check_number,
    full,
    register,
    zeros,
)
from keras_tfopt.algorithms import (
    AMSGrad,
    GGT,
    LARS,
    Adam,
    GradVarianceScaled,
    LazyAdam,
    Momentum,
    NeuralOptimizer1,
    NormalizedSGD,
)
from keras_tfopt.diagnosis import Diagnosis, diagnose
from keras_tfopt.execution import RowGradient, Rows, Slot
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers import MovingAverage

__all__ = [
    "AMSGrad",
    "GGT",
    "LARS",
    "Adam",
    "Algorithm",
    "Diagnosis",
    "GradVarianceScaled",
    "LazyAdam",
    "LossScaleOptimizer",
    "Momentum",
    "MovingAverage",
    "NeuralOptimizer1",
    "NormalizedSGD",
    "RowGradient",
    "Rows",
    "Slot",
    "Wrapper",
    "__version__",
    "callbacks",
    "check_bool",
    "check_global_step",
    "check_hyperparameter",
    "check_integer",
    "check_number",
    "diagnose",
    "full",
    "register",
    "zeros",
]
