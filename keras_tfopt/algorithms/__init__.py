"""The optimizers, one rule per file."""

from keras_tfopt.algorithms.adam import Adam
from keras_tfopt.algorithms.adam_gs import AdamGS
from keras_tfopt.algorithms.adamax import AdaMax
from keras_tfopt.algorithms.add_sign import AddSign
from keras_tfopt.algorithms.ggt import GGT
from keras_tfopt.algorithms.lars import LARS
from keras_tfopt.algorithms.lazy_adam import LazyAdam
from keras_tfopt.algorithms.lazy_adam_gs import LazyAdamGS
from keras_tfopt.algorithms.momentum import Momentum
from keras_tfopt.algorithms.nadam import Nadam
from keras_tfopt.algorithms.power_sign import PowerSign
from keras_tfopt.algorithms.reg_adagrad import RegAdagrad

__all__ = [
    "GGT",
    "LARS",
    "AdaMax",
    "Adam",
    "AdamGS",
    "AddSign",
    "LazyAdam",
    "LazyAdamGS",
    "Momentum",
    "Nadam",
    "PowerSign",
    "RegAdagrad",
]
