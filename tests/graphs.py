"""Graphs of TensorFlow 1 for tests: variables of both kinds, gradients, tolerances."""

import contextlib

import numpy as np
import pytest

from tests import cells
from tests.stepping import BACKEND

if BACKEND != "tensorflow":  # as well for the tests that import this file
    pytest.skip("graphs of TensorFlow 1 are TensorFlow's", allow_module_level=True)

import tensorflow as tf
from tensorflow.python.eager import context

from keras_tfopt import legacy

v1 = tf.compat.v1

KINDS = ("reference", "resource")
every_kind = pytest.mark.parametrize("kind", KINDS)


def one_kind_of_each(kinds_of):
    """Mark a test for `{name: kinds of variables}`: one kind of each name, all if exhaustive."""
    pairs = [
        pytest.param(
            name,
            kind,
            id=f"{name}-{kind}",
            marks=[pytest.mark.exhaustive] * (kind != cells.pick(kinds, name)),
        )
        for name, kinds in kinds_of.items()
        for kind in kinds
    ]
    return pytest.mark.parametrize(("name", "kind"), pairs)


DTYPES = ("float16", "float32", "float64")
# Errors of numbers near one after some steps; the reference computes in the same types. Numbers for
# constructors are rounded to float32 first, as in TensorFlow 1.
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


MAKE = {
    "Adam": lambda: legacy.AdamOptimizer(0.1),
    "LARS": lambda: legacy.LARSOptimizer(0.5, eeta=0.5),
    "GGT": lambda: legacy.GGTOptimizer(0.1, window=2),
    "averages": lambda: legacy.MovingAverageOptimizer(legacy.NadamOptimizer(0.1), 0.5),
    "multitask": lambda: legacy.MultitaskOptimizerWrapper(legacy.MomentumOptimizer(0.1, 0.9)),
    "decay": lambda: legacy.AdamWOptimizer(0.01, 0.1),
}


def straight(make, steps, kind="resource"):
    """Return what a variable becomes in some steps."""
    with session() as sess:
        x = variable([1.0, -2.0], "x", kind)
        train = make().minimize(tf.reduce_sum(x**2), var_list=[x])
        start(sess)
        for _ in range(steps):
            sess.run(train)
        return sess.run(x)
