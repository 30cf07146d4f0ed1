"""Programs of Keras 2, TensorFlow Addons and TensorFlow 1, rewritten for Keras 3."""
