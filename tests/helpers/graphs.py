"""Variables, gradients, sessions and tolerances for tests in graphs of TensorFlow 1."""

import contextlib

import numpy as np
import pytest

from tests import cells
from tests.helpers.stepping import BACKEND

if BACKEND != "tensorflow":  # this also skips the files that import this one
    pytest.skip("graphs of TensorFlow 1 are TensorFlow's", allow_module_level=True)

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util

from keras_tfopt import legacy

v1 = tf.compat.v1

KINDS = ("reference", "resource")
every_kind = pytest.mark.parametrize("kind", KINDS)


def one_kind_of_each(kinds_of, rare=()):
    """Mark a test for `{name: kinds of variables}`: one kind of each name, all if exhaustive.

    Names in `rare` run only if exhaustive.
    """
    pairs = [
        pytest.param(
            name,
            kind,
            id=f"{name}-{kind}",
            marks=[pytest.mark.exhaustive] * (name in rare or kind != cells.pick(kinds, name)),
        )
        for name, kinds in kinds_of.items()
        for kind in kinds
    ]
    return pytest.mark.parametrize(("name", "kind"), pairs)


DTYPES = ("float16", "float32", "float64")
# For numbers near 1 after some steps. The reference computes in the same types. As in TensorFlow 1,
# arguments of constructors are rounded to float32.
TOLERANCES = {"float16": 4e-3, "float32": 4e-6, "float64": 2e-8}


@contextlib.contextmanager
def session():
    """A context with a new graph and a session."""
    with tf.Graph().as_default(), v1.Session() as one:
        yield one


def eagerly():
    """A context without graphs, also in TensorFlow's mode of version 1."""
    return context.eager_mode()


def variable(value, name=None, kind="resource", dtype="float32", **more):
    """Return a new variable of the current graph."""
    use_resource = kind == "resource"
    return v1.Variable(np.asarray(value, dtype), name=name, use_resource=use_resource, **more)


def counter(kind="resource", name="global_step"):
    return variable(0, name, kind, "int64", trainable=False)


def tensor(value, dtype="float32"):
    return tf.constant(np.asarray(value, dtype))


def rows(values, indices, shape=None, dtype="float32", index_dtype="int64"):
    """Return a row gradient."""
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
    """Return the variable [1, -2] after some steps that minimize its squares."""
    with session() as sess:
        x = variable([1.0, -2.0], "x", kind)
        train = make().minimize(tf.reduce_sum(x**2), var_list=[x])
        start(sess)
        for _ in range(steps):
            sess.run(train)
        return sess.run(x)


def choose_control_flow(monkeypatch, version):
    """Make `cond` and `while_loop` "of version 1" in this test, or "later"."""
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", version == "later")
