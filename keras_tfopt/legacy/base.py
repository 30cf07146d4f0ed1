"""The class that the optimizers under their names in TensorFlow 1 derive from."""

from __future__ import annotations

from typing import Any

import keras

OptimizerBase: Any


class _Named:
    def __init__(self, use_locking: bool, name: str):
        self._name = name


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    OptimizerBase = tf.compat.v1.train.Optimizer
else:
    OptimizerBase = _Named
