"""Optimizers around other optimizers."""

from typing import TYPE_CHECKING

from keras_tfopt.wrappers.adam_w import AdamW as AdamW
from keras_tfopt.wrappers.cautious import Cautious as Cautious
from keras_tfopt.wrappers.decoupled_weight_decay import DecoupledWeightDecay as DecoupledWeightDecay
from keras_tfopt.wrappers.extension import (
    extend_with_decoupled_weight_decay as extend_with_decoupled_weight_decay,
)
from keras_tfopt.wrappers.extension import extend_with_weight_decay as extend_with_weight_decay
from keras_tfopt.wrappers.lookahead import Lookahead as Lookahead
from keras_tfopt.wrappers.momentum_w import MomentumW as MomentumW
from keras_tfopt.wrappers.moving_average import MovingAverage as MovingAverage
from keras_tfopt.wrappers.multitask import Multitask as Multitask
from keras_tfopt.wrappers.multitask import (
    clip_gradients_by_global_norm as clip_gradients_by_global_norm,
)
from keras_tfopt.wrappers.schedule_free import ScheduleFree as ScheduleFree
from keras_tfopt.wrappers.sgd_w import SGDW as SGDW
from keras_tfopt.wrappers.skip_non_finite import SkipNonFinite as SkipNonFinite
from keras_tfopt.wrappers.stochastic_weight_averaging import (
    StochasticWeightAveraging as StochasticWeightAveraging,
)
from keras_tfopt.wrappers.variable_clipping import VariableClipping as VariableClipping

if not TYPE_CHECKING:
    __all__ = [name for name, item in dict(vars()).items() if callable(item)]
