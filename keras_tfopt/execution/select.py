"""The backend module in use: the one of Keras, and no other is ever imported."""

import importlib

import keras

SUPPORTED = ("tensorflow", "jax", "torch")

if keras.backend.backend() not in SUPPORTED:
    raise ImportError(
        f"keras_tfopt runs on the Keras backends {SUPPORTED}. "
        f"Keras is set to {keras.backend.backend()!r} (environment variable KERAS_BACKEND)"
    )

backend = importlib.import_module(f"keras_tfopt.execution.{keras.backend.backend()}")
