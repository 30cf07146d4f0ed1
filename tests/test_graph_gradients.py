"""Gradients and variables in graphs: rows, unknown shapes, bfloat16."""

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.helpers.graphs import (
    assert_close,
    every_kind,
    rows,
    session,
    start,
    tensor,
    tf,
    v1,
    variable,
)

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")


@every_kind
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_gradients_of_gathered_rows(kind, index_dtype):
    """Repeated rows are summed, and a wrong `dense_shape` does not matter."""
    with session() as sess:
        x, y = (variable([[1.0], [2.0], [3.0]], kind=kind) for _ in range(2))
        indices = tf.constant([[2, 0], [2, 2]], index_dtype)
        train = legacy.LazyAdamOptimizer(0.5, beta1=0.0, epsilon=0.0).minimize(
            tf.reduce_sum(tf.gather(x, indices))
        )
        wrong_shape = rows([[1.0], [3.0]], [0, 2], [2], index_dtype=index_dtype)
        same = legacy.LazyAdamOptimizer(0.5, beta1=0.0, epsilon=0.0).apply_gradients(
            [(wrong_shape, y)]
        )
        start(sess)
        for _ in range(2):
            sess.run([train, same])
        assert_close(sess.run(x), [[0.0], [2.0], [2.0]], factor=3)
        np.testing.assert_array_equal(sess.run(x), sess.run(y))


@every_kind
def test_gradients_of_unknown_shape(kind):
    """Gradients may be placeholders without a shape."""
    with session() as sess:
        x, y, z = (variable([1.0, 2.0], kind=kind) for _ in range(3))
        fed = v1.placeholder("float32")
        indices = v1.placeholder("int64")
        optimizer = legacy.MomentumOptimizer(2.0, 0.9)
        pairs = [
            (tf.IndexedSlices(fed, tf.constant([0, 1])), x),
            (fed, y),
            (tf.IndexedSlices(fed, indices, tf.constant([2])), z),
        ]
        train = optimizer.apply_gradients(pairs)
        start(sess)
        sess.run(train, {fed: [0.1, 0.2], indices: [1, 1]})
        assert_close(sess.run([x, y, z]), [[0.8, 1.6], [0.8, 1.6], [1.0, 1.4]])


@every_kind
@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("name", ["AdagradOptimizer", "RegAdagradOptimizer", "AdamOptimizer"])
def test_variables_of_unknown_shape(name, shape, kind):
    """Variables without a static shape get slots and move."""
    with session() as sess:
        cls = getattr(legacy, name)
        use_resource = kind == "resource"
        x, y = (
            v1.get_variable(
                label,
                initializer=lambda: v1.placeholder_with_default(np.ones(shape, "f"), None),
                validate_shape=False,
                use_resource=use_resource,
            )
            for label in "xy"
        )
        assert x.shape.rank is None
        z = variable(np.ones(shape), "z", kind)
        given = np.full(shape, 0.1)
        train = cls(0.3).apply_gradients([(tensor(given), x), (tensor(given), z)])
        sparse = []
        if shape:
            sparse.append(cls(0.3).apply_gradients([(rows(given[:1], [1]), y)]))
        start(sess)
        for _ in range(3):
            sess.run([train, *sparse])
        assert_close(sess.run(x), sess.run(z))
        assert not np.array_equal(sess.run(x), np.ones(shape))
        if shape and name != "AdamOptimizer":
            assert_close(sess.run(y)[1], sess.run(z)[1])
            assert sess.run(y)[0].tolist() == [1.0] * 3


@every_kind
def test_gradients_that_are_variables(kind):
    """A variable may be a gradient. Its value in the step counts."""
    with session() as sess:
        x, g = variable([1.0, 2.0], kind=kind), variable([0.0, 0.0], kind=kind)
        train = legacy.LARSOptimizer(1.0, 0.0, 0.0, 1.0).apply_gradients([(g, x)])
        start(sess)
        g.load([0.3, 0.4], sess)
        sess.run(train)
        norm = np.sqrt(5.0)
        assert_close(sess.run(x), [1 - 0.6 * norm, 2 - 0.8 * norm])


@every_kind
def test_steps_of_bfloat16_are_computed_in_bfloat16(kind):
    with session() as sess:
        x = v1.Variable(tf.ones([2], "bfloat16"), use_resource=kind == "resource")
        optimizer = legacy.MomentumOptimizer(0.5, 0.9)
        train = optimizer.apply_gradients([(tf.constant([1.0, 2.0**-9], "bfloat16"), x)])
        start(sess)
        assert optimizer.get_slot(x, "momentum").dtype.base_dtype == tf.bfloat16
        sess.run([train])
        # bfloat16 has eight bits, so 1 minus half of 2**-9 is 1.
        assert sess.run(tf.cast(x, "float32")).tolist() == [0.5, 1.0]


def test_compute_lr_of_lars():
    """Skipped variables have the plain learning rate."""
    with session() as sess:
        x, b = variable([3.0, 4.0], "w"), variable([1.0], "bias")
        optimizer = legacy.LARSOptimizer(2.0, weight_decay=0.1, eeta=0.5, skip_list=["bias"])
        rate, g = optimizer.compute_lr(tensor([6.0, 8.0]), x)
        skipped = optimizer.compute_lr(tensor([6.0]), b)
        start(sess)
        assert_close(sess.run(rate), 2 * 0.5 * 5 / (10 + 0.1 * 5))
        assert_close(sess.run(g), [6.3, 8.4])
        assert sess.run(skipped) == (2.0, [6.0])
