"""A plugin for pytest: TensorFlow behaves as its version 1 in everything that can be switched."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

tf.compat.v1.disable_v2_behavior()
