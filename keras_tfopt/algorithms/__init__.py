"""The optimizers, one rule per file."""

from keras_tfopt.algorithms.adam import Adam
from keras_tfopt.algorithms.amsgrad import AMSGrad
from keras_tfopt.algorithms.ggt import GGT
from keras_tfopt.algorithms.lars import LARS
from keras_tfopt.algorithms.lazy_adam import LazyAdam
from keras_tfopt.algorithms.momentum import Momentum

__all__ = ["AMSGrad", "GGT", "LARS", "Adam", "LazyAdam", "Momentum"]
