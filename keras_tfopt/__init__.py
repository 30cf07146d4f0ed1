"""Every optimizer of TensorFlow's past on every backend of Keras 3."""

from keras_tfopt import callbacks, schedules
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
    GGT,
    LARS,
    Adam,
    AdaMax,
    AdamGS,
    AddSign,
    LazyAdam,
    LazyAdamGS,
    Momentum,
    Nadam,
    PowerSign,
    RegAdagrad,
)
from keras_tfopt.diagnosis import Diagnosis, diagnose
from keras_tfopt.execution import RowGradient, Rows, Slot
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers import MovingAverage

__all__ = [
    "GGT",
    "LARS",
    "AdaMax",
    "Adam",
    "AdamGS",
    "AddSign",
    "Algorithm",
    "Diagnosis",
    "LazyAdam",
    "LazyAdamGS",
    "LossScaleOptimizer",
    "Momentum",
    "MovingAverage",
    "Nadam",
    "PowerSign",
    "RegAdagrad",
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
    "schedules",
    "zeros",
]
