"""Schedules for learning rates and for other hyperparameters."""

from keras_tfopt.schedules.sign_decay import CosineSignDecay, LinearSignDecay, RestartSignDecay
from keras_tfopt.schedules.warm_up import WarmUpPolynomialDecay

__all__ = ["CosineSignDecay", "LinearSignDecay", "RestartSignDecay", "WarmUpPolynomialDecay"]
