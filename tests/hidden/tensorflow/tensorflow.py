"""Makes TensorFlow look absent: on other backends Keras imports it to save a model."""

raise ImportError("hidden by tests/hidden")
