"""Makes TensorFlow look absent in a process on another backend that has this folder on its path.

Where TensorFlow is installed, Keras imports it to save a model. That takes seconds.
"""

raise ImportError("hidden by tests/without_tensorflow")
