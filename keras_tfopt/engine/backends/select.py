"""Import the package for the backend of Keras, and no other."""

import importlib
from typing import cast

import keras

from keras_tfopt.engine.backends.protocol import Backend

SUPPORTED = ("tensorflow", "jax", "torch")

if keras.backend.backend() not in SUPPORTED:
    raise ImportError(
        f"keras_tfopt runs on the Keras backends {SUPPORTED}. "
        f"Keras is set to {keras.backend.backend()!r} (environment variable KERAS_BACKEND)"
    )

backend = cast(
    Backend, importlib.import_module(f"keras_tfopt.engine.backends.{keras.backend.backend()}")
)
