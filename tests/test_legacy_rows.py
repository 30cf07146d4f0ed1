"""Row gradients in `keras_tfopt.legacy`: given ones, and those of rows that a loss looks up."""

import itertools

import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.stepping import BACKEND, make_variable, to_numpy
from tests.helpers.verbs import variable


def test_row_gradients_touch_the_rows_that_they_name():
    table = variable(np.ones((4, 2)), "table")
    optimizer = legacy.LazyAdamOptimizer(0.1, beta1=0.5)
    every = keras_tfopt.RowGradient(np.ones((4, 2), "f"), [0, 1, 2, 3], (4, 2))
    optimizer.apply_gradients([(every, table)])
    before = to_numpy(table)
    rows = keras_tfopt.RowGradient(np.array([[1, 1], [0, 0], [1, 1]], "f"), [2, 1, 2], (4, 2))
    halved = rows.map(lambda values: values / 2)  # processed between compute and apply
    optimizer.apply_gradients([(halved, table)])
    moved = np.abs(to_numpy(table) - before).max(1) > 1e-6
    assert moved.tolist() == [False, True, True, False]
    m = to_numpy(optimizer.get_slot(table, "m"))[:, 0]
    np.testing.assert_allclose(m, [0.5, 0.25, 0.75, 0.5])


@pytest.mark.backends("tensorflow", reason="IndexedSlices are TensorFlow's")
def test_indexed_slices_are_computed_and_applied():
    import tensorflow as tf

    table = variable(np.ones((4, 2)), "table")
    optimizer = legacy.LazyAdamOptimizer(0.1)
    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table.value, [1, 1, 2])))
    assert isinstance(pairs[0][0], tf.IndexedSlices)
    assert optimizer.apply_gradients(pairs) is None
    m = to_numpy(optimizer.get_slot(table, "m"))[:, 0]
    np.testing.assert_allclose(m, [0, 0.2, 0.1, 0], rtol=1e-6)


# ---- Lookups


def by_take(table, ids):
    return ops.take(table, ids, axis=0)


def by_index(table, ids):
    if BACKEND == "tensorflow":  # it has no such index
        return by_take(table, ids)
    return ops.convert_to_tensor(table)[ops.convert_to_tensor(ids)]


# A table under any name, looked up in each step, with the same id twice and with a factor of zero.
STEPS = [([1, 1, 2], 3.0), ([0, 2, 3], 1.0), ([1, 3, 0], 0.0)]


MAKE = {
    "LazyAdam": lambda: legacy.LazyAdamOptimizer(0.5),
    "Momentum": lambda: legacy.MomentumOptimizer(0.5, 0.9),
    "MomentumW": lambda: legacy.MomentumWOptimizer(0.1, 0.5, 0.9),
    "clipping": lambda: legacy.VariableClippingOptimizer(
        legacy.AdamOptimizer(0.5), {"table": [1]}, 1.0
    ),
    "averages": lambda: legacy.MovingAverageOptimizer(legacy.MomentumOptimizer(0.5, 0.9)),
}
USUAL = [
    ("LazyAdam", by_take, False),
    ("LazyAdam", by_index, True),
    ("Momentum", by_index, False),
    ("MomentumW", by_take, True),
    ("clipping", by_index, True),
    ("averages", by_take, False),
]


@pytest.mark.parametrize(
    ("name", "look_up", "compiled"),
    [
        way if way in USUAL else exhaustive(*way)
        for way in itertools.product(MAKE, (by_take, by_index), (False, True))
    ],
)
def test_looked_up_rows_of_any_table_are_touched(name, look_up, compiled):
    """All rows that are looked up are touched, and no others, as with row gradients."""
    table, twin = (make_variable("table", np.arange(10.0).reshape(5, 2)) for _ in range(2))
    kernel = make_variable("kernel", np.ones((2, 2), "f"))
    optimizer, told = MAKE[name](), MAKE[name]()

    def loss(ids, factor):
        rows = look_up(table, ids)
        return factor * (ops.sum(rows) + ops.sum(look_up(table, ids[:1]))) + ops.sum(kernel)

    for ids, factor in STEPS:
        ids = np.array(ids)
        optimizer.minimize(loss, compiled=compiled, inputs=(ids, factor))
        named = np.concatenate([ids, ids[:1]])
        gradient = keras_tfopt.RowGradient(np.full((4, 2), factor, "f"), named, (5, 2))
        told.apply_gradients([(gradient, twin)])
        np.testing.assert_allclose(to_numpy(table), to_numpy(twin), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(to_numpy(table)[4], [8.0, 9.0])


@pytest.mark.parametrize(
    "loss",
    [
        lambda v: ops.sum(ops.take(v, np.array([1, 2]), axis=0)) + 0.5 * ops.sum(v[3:] * v[3:]),
        lambda v: ops.sum(ops.take(v, np.array([1]), axis=1)),
        lambda v: ops.sum(ops.matmul(np.array([[0.0, 1.0, 1.0, 0.0, 0.0]], "f"), v)),
    ],
)
def test_other_uses_of_a_table_give_dense_gradients(loss):
    table = make_variable("table", np.ones((5, 2), "f"))
    ((gradient, _),) = legacy.LazyAdamOptimizer(0.5).compute_gradients(lambda: loss(table))
    assert type(gradient).__name__ not in ("RowGradient", "IndexedSlices")
    assert tuple(gradient.shape) == (5, 2)
