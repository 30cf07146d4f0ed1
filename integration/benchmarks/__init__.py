"""Benchmarks: ratios to a named peer, measured side by side in one process."""

from keras_tfopt import engine

engine.compile_in_background(False)  # or some of the steps that are timed would not be compiled
