"""The optimizers, one rule per file."""

from typing import TYPE_CHECKING

from keras_tfopt.rules.ada_belief import AdaBelief as AdaBelief
from keras_tfopt.rules.adadelta import Adadelta as Adadelta
from keras_tfopt.rules.adafactor import Adafactor as Adafactor
from keras_tfopt.rules.adagrad import Adagrad as Adagrad
from keras_tfopt.rules.adagrad_da import AdagradDA as AdagradDA
from keras_tfopt.rules.adam import Adam as Adam
from keras_tfopt.rules.adam_gs import AdamGS as AdamGS
from keras_tfopt.rules.adamax import AdaMax as AdaMax
from keras_tfopt.rules.adan import Adan as Adan
from keras_tfopt.rules.add_sign import AddSign as AddSign
from keras_tfopt.rules.ademamix import AdEMAMix as AdEMAMix
from keras_tfopt.rules.adopt import ADOPT as ADOPT
from keras_tfopt.rules.amsgrad import AMSGrad as AMSGrad
from keras_tfopt.rules.came import CAME as CAME
from keras_tfopt.rules.cocob import COCOB as COCOB
from keras_tfopt.rules.conditional_gradient import ConditionalGradient as ConditionalGradient
from keras_tfopt.rules.d_adapt_adam import DAdaptAdam as DAdaptAdam
from keras_tfopt.rules.distributed_shampoo import DistributedShampoo as DistributedShampoo
from keras_tfopt.rules.ftrl import Ftrl as Ftrl
from keras_tfopt.rules.ggt import GGT as GGT
from keras_tfopt.rules.grad_variance_scaled import GradVarianceScaled as GradVarianceScaled
from keras_tfopt.rules.gradient_descent import GradientDescent as GradientDescent
from keras_tfopt.rules.lamb import LAMB as LAMB
from keras_tfopt.rules.laprop import LaProp as LaProp
from keras_tfopt.rules.lars import LARS as LARS
from keras_tfopt.rules.lazy_adam import LazyAdam as LazyAdam
from keras_tfopt.rules.lazy_adam_gs import LazyAdamGS as LazyAdamGS
from keras_tfopt.rules.lbfgs import LBFGS as LBFGS
from keras_tfopt.rules.lion import Lion as Lion
from keras_tfopt.rules.mars import MARS as MARS
from keras_tfopt.rules.matrix_roots import matrix_inverse_pth_root as matrix_inverse_pth_root
from keras_tfopt.rules.matrix_roots import matrix_square_root as matrix_square_root
from keras_tfopt.rules.momentum import Momentum as Momentum
from keras_tfopt.rules.muon import Muon as Muon
from keras_tfopt.rules.nadam import Nadam as Nadam
from keras_tfopt.rules.nadam_w import NadamW as NadamW
from keras_tfopt.rules.neural_optimizer1 import NeuralOptimizer1 as NeuralOptimizer1
from keras_tfopt.rules.normalized_sgd import NormalizedSGD as NormalizedSGD
from keras_tfopt.rules.novo_grad import NovoGrad as NovoGrad
from keras_tfopt.rules.power_sign import PowerSign as PowerSign
from keras_tfopt.rules.prodigy import Prodigy as Prodigy
from keras_tfopt.rules.proximal_adagrad import ProximalAdagrad as ProximalAdagrad
from keras_tfopt.rules.proximal_gradient_descent import (
    ProximalGradientDescent as ProximalGradientDescent,
)
from keras_tfopt.rules.rectified_adam import RectifiedAdam as RectifiedAdam
from keras_tfopt.rules.reg_adagrad import RegAdagrad as RegAdagrad
from keras_tfopt.rules.rmsprop import RMSProp as RMSProp
from keras_tfopt.rules.schedule_free_adam_w import ScheduleFreeAdamW as ScheduleFreeAdamW
from keras_tfopt.rules.schedule_free_sgd import ScheduleFreeSGD as ScheduleFreeSGD
from keras_tfopt.rules.shampoo import Shampoo as Shampoo
from keras_tfopt.rules.simplified_ademamix import SimplifiedAdEMAMix as SimplifiedAdEMAMix
from keras_tfopt.rules.soap import SOAP as SOAP
from keras_tfopt.rules.stable_adam_w import StableAdamW as StableAdamW
from keras_tfopt.rules.yogi import Yogi as Yogi

if not TYPE_CHECKING:
    __all__ = [name for name, item in dict(vars()).items() if callable(item)]
