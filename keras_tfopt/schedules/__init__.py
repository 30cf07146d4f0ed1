"""Schedules for learning rates and for other hyperparameters."""

from keras_tfopt.schedules.cosine import SGDR, OneCycle, WarmUpCosineDecay
from keras_tfopt.schedules.cyclical import (
    CyclicalLearningRate,
    ExponentialCyclicalLearningRate,
    Triangular2CyclicalLearningRate,
    TriangularCyclicalLearningRate,
)
from keras_tfopt.schedules.plotting import plot
from keras_tfopt.schedules.sign_decay import CosineSignDecay, LinearSignDecay, RestartSignDecay
from keras_tfopt.schedules.warm_up import WarmUp, WarmUpPolynomialDecay, WarmUpStableDecay

__all__ = [
    "CosineSignDecay",
    "CyclicalLearningRate",
    "ExponentialCyclicalLearningRate",
    "LinearSignDecay",
    "OneCycle",
    "plot",
    "RestartSignDecay",
    "SGDR",
    "Triangular2CyclicalLearningRate",
    "TriangularCyclicalLearningRate",
    "WarmUp",
    "WarmUpCosineDecay",
    "WarmUpPolynomialDecay",
    "WarmUpStableDecay",
]
