"""Optimizers around other optimizers."""

from keras_tfopt.wrappers.adam_w import AdamW
from keras_tfopt.wrappers.decoupled_weight_decay import DecoupledWeightDecay
from keras_tfopt.wrappers.extension import (
    extend_with_decoupled_weight_decay,
    extend_with_weight_decay,
)
from keras_tfopt.wrappers.lookahead import Lookahead
from keras_tfopt.wrappers.momentum_w import MomentumW
from keras_tfopt.wrappers.moving_average import MovingAverage
from keras_tfopt.wrappers.multitask import Multitask, clip_gradients_by_global_norm
from keras_tfopt.wrappers.skip_non_finite import SkipNonFinite
from keras_tfopt.wrappers.stochastic_weight_averaging import StochasticWeightAveraging
from keras_tfopt.wrappers.variable_clipping import VariableClipping

__all__ = [
    "AdamW",
    "DecoupledWeightDecay",
    "Lookahead",
    "MomentumW",
    "MovingAverage",
    "Multitask",
    "SkipNonFinite",
    "StochasticWeightAveraging",
    "VariableClipping",
    "clip_gradients_by_global_norm",
    "extend_with_decoupled_weight_decay",
    "extend_with_weight_decay",
]
