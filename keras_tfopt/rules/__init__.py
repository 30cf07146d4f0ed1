"""The optimizers, one rule per file."""

from keras_tfopt.rules.adadelta import Adadelta
from keras_tfopt.rules.adagrad import Adagrad
from keras_tfopt.rules.adagrad_da import AdagradDA
from keras_tfopt.rules.adam import Adam
from keras_tfopt.rules.adam_gs import AdamGS
from keras_tfopt.rules.adamax import AdaMax
from keras_tfopt.rules.add_sign import AddSign
from keras_tfopt.rules.amsgrad import AMSGrad
from keras_tfopt.rules.ftrl import Ftrl
from keras_tfopt.rules.ggt import GGT
from keras_tfopt.rules.grad_variance_scaled import GradVarianceScaled
from keras_tfopt.rules.gradient_descent import GradientDescent
from keras_tfopt.rules.lars import LARS
from keras_tfopt.rules.lazy_adam import LazyAdam
from keras_tfopt.rules.lazy_adam_gs import LazyAdamGS
from keras_tfopt.rules.matrix_roots import matrix_inverse_pth_root, matrix_square_root
from keras_tfopt.rules.momentum import Momentum
from keras_tfopt.rules.nadam import Nadam
from keras_tfopt.rules.neural_optimizer1 import NeuralOptimizer1
from keras_tfopt.rules.normalized_sgd import NormalizedSGD
from keras_tfopt.rules.power_sign import PowerSign
from keras_tfopt.rules.proximal_adagrad import ProximalAdagrad
from keras_tfopt.rules.proximal_gradient_descent import ProximalGradientDescent
from keras_tfopt.rules.reg_adagrad import RegAdagrad
from keras_tfopt.rules.rmsprop import RMSProp
from keras_tfopt.rules.shampoo import Shampoo

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
