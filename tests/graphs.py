"""Graphs of TensorFlow 1 for tests: variables of both kinds, gradients, and how exact a step is."""

import contextlib

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

v1 = tf.compat.v1

KINDS = ("reference", "resource")
DTYPES = ("float16", "float32", "float64")
# Of numbers near one, after some steps that are computed in these types on both sides. Numbers
# given to constructors pass through float32 on their way, as in TensorFlow 1.
TOLERANCES = {"float16": 4e-3, "float32": 4e-6, "float64": 2e-8}


@contextlib.contextmanager
def session():
    """A session on a new graph, in which operations and variables are then made."""
    with tf.Graph().as_default(), v1.Session() as one:
        yield one


def eagerly():
    """A context without graphs, also where TensorFlow behaves as its version 1."""
    return context.eager_mode()


def variable(value, name=None, kind="resource", dtype="float32", **more):
    """A variable of the graph that is being built."""
    use_resource = kind == "resource"
    return v1.Variable(np.asarray(value, dtype), name=name, use_resource=use_resource, **more)


def counter(kind="resource", name="global_step"):
    return variable(0, name, kind, "int64", trainable=False)


def tensor(value, dtype="float32"):
    return tf.constant(np.asarray(value, dtype))


def rows(values, indices, shape=None, dtype="float32", index_dtype="int64"):
    """A gradient of rows."""
    shape = None if shape is None else tf.constant(shape, "int64")
    return tf.IndexedSlices(tensor(values, dtype), tf.constant(indices, index_dtype), shape)


def start(session):
    session.run(v1.global_variables_initializer())


def assert_close(actual, expected, dtype="float32", factor=1.0):
    actual, expected = (np.asarray(array, "float64") for array in (actual, expected))
    size = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=TOLERANCES[dtype] * factor * size, strict=True
    )
