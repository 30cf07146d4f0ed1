"""Programs that run TensorFlow Addons itself, on Keras 2."""
