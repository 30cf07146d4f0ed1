"""Rewrite programs of Keras 2, TensorFlow Addons and TensorFlow 1 for Keras 3."""
