"""Choose the module that runs the verbs: `graph` on TensorFlow, `eager` elsewhere."""

from __future__ import annotations

import importlib
from typing import Any

import keras

_HERE = "graph" if keras.backend.backend() == "tensorflow" else "eager"

running: Any = importlib.import_module(f"keras_tfopt.legacy.{_HERE}")
"""`keras_tfopt.legacy.graph` or `keras_tfopt.legacy.eager`: both define the same names."""
