"""The optimizers, one rule per file."""

from keras_tfopt.algorithms.adadelta import Adadelta
from keras_tfopt.algorithms.adagrad import Adagrad
from keras_tfopt.algorithms.adagrad_da import AdagradDA
from keras_tfopt.algorithms.adam import Adam
from keras_tfopt.algorithms.adam_gs import AdamGS
from keras_tfopt.algorithms.adamax import AdaMax
from keras_tfopt.algorithms.add_sign import AddSign
from keras_tfopt.algorithms.amsgrad import AMSGrad
from keras_tfopt.algorithms.ftrl import Ftrl
from keras_tfopt.algorithms.ggt import GGT
from keras_tfopt.algorithms.grad_variance_scaled import GradVarianceScaled
from keras_tfopt.algorithms.gradient_descent import GradientDescent
from keras_tfopt.algorithms.lars import LARS
from keras_tfopt.algorithms.lazy_adam import LazyAdam
from keras_tfopt.algorithms.lazy_adam_gs import LazyAdamGS
from keras_tfopt.algorithms.matrix_roots import matrix_inverse_pth_root, matrix_square_root
from keras_tfopt.algorithms.momentum import Momentum
from keras_tfopt.algorithms.nadam import Nadam
from keras_tfopt.algorithms.neural_optimizer1 import NeuralOptimizer1
from keras_tfopt.algorithms.normalized_sgd import NormalizedSGD
from keras_tfopt.algorithms.power_sign import PowerSign
from keras_tfopt.algorithms.proximal_adagrad import ProximalAdagrad
from keras_tfopt.algorithms.proximal_gradient_descent import ProximalGradientDescent
from keras_tfopt.algorithms.reg_adagrad import RegAdagrad
from keras_tfopt.algorithms.rmsprop import RMSProp
from keras_tfopt.algorithms.shampoo import Shampoo

__all__ = [
    "Shampoo",
    "matrix_inverse_pth_root",
    "matrix_square_root",
    "AMSGrad",
    "AdaMax",
    "Adadelta",
    "Adagrad",
    "AdagradDA",
    "Adam",
    "AdamGS",
    "AddSign",
    "Ftrl",
    "GGT",
    "GradVarianceScaled",
    "GradientDescent",
    "LARS",
    "LazyAdam",
    "LazyAdamGS",
    "Momentum",
    "Nadam",
    "NeuralOptimizer1",
    "NormalizedSGD",
    "PowerSign",
    "ProximalAdagrad",
    "ProximalGradientDescent",
    "RMSProp",
    "RegAdagrad",
]
