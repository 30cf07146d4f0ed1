"""Schedules for learning rates and for other hyperparameters."""

from keras_tfopt.schedules.sign_decay import CosineSignDecay, LinearSignDecay, RestartSignDecay

__all__ = ["CosineSignDecay", "LinearSignDecay", "RestartSignDecay"]
