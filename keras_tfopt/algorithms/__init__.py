"""The optimizers, one rule per file."""

from keras_tfopt.algorithms.adam import Adam
from keras_tfopt.algorithms.amsgrad import AMSGrad
from keras_tfopt.algorithms.ggt import GGT
from keras_tfopt.algorithms.grad_variance_scaled import GradVarianceScaled
from keras_tfopt.algorithms.lars import LARS
from keras_tfopt.algorithms.lazy_adam import LazyAdam
from keras_tfopt.algorithms.momentum import Momentum
from keras_tfopt.algorithms.neural_optimizer1 import NeuralOptimizer1
from keras_tfopt.algorithms.normalized_sgd import NormalizedSGD

__all__ = [
    "AMSGrad",
    "GGT",
    "LARS",
    "Adam",
    "GradVarianceScaled",
    "LazyAdam",
    "Momentum",
    "NeuralOptimizer1",
    "NormalizedSGD",
]
