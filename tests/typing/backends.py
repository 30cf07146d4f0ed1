"""Each backend has the functions of the protocol, as mypy sees it; see `tests/test_protocol.py`."""

import keras_tfopt.engine.backends.jax
import keras_tfopt.engine.backends.tensorflow
import keras_tfopt.engine.backends.torch
from keras_tfopt.engine.backends.protocol import Backend

JAX: Backend = keras_tfopt.engine.backends.jax
TENSORFLOW: Backend = keras_tfopt.engine.backends.tensorflow
TORCH: Backend = keras_tfopt.engine.backends.torch
