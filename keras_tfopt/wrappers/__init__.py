"""Optimizers around other optimizers."""

from keras_tfopt.wrappers.moving_average import MovingAverage

__all__ = ["MovingAverage"]
