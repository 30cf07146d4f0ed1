"""Sparse COO gradients of PyTorch, from layers that ask for them."""

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.stock_defects.scenarios import mean_of_outputs
from tests.helpers.compare import assert_close
from tests.helpers.options import CASE, OPTIONS, Expected
from tests.helpers.stepping import Rows, policy

pytestmark = pytest.mark.backends("torch", reason="only PyTorch has sparse COO gradients")


class SparseEmbedding(keras.layers.Layer):
    """A table whose gradient torch keeps sparse."""

    def build(self, shape):
        # Autocast would copy the whole table and its gradient to half precision.
        self.embeddings = self.add_weight(
            shape=(4, 2), initializer="normal", name="embeddings", autocast=False
        )

    def call(self, ids):
        import torch

        rows = torch.nn.functional.embedding(ids.long(), self.embeddings.value, sparse=True)
        return keras.ops.cast(rows, self.compute_dtype)

    def compute_output_shape(self, shape):
        return (*shape, 2)


def sparse_model(optimizer):
    model = keras.Sequential([keras.layers.Input((3,), dtype="int32"), SparseEmbedding()])
    table = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    model.set_weights([table])
    model.compile(optimizer, mean_of_outputs)
    return model, table


SPARSE_IDS = np.array([[1, 1, 2], [2, 2, 2], [1, 2, 1], [0, 1, 0]])


@pytest.mark.parametrize("name", OPTIONS)
def test_sparse_tensors_of_torch(name):
    options, case = OPTIONS[name], CASE["LazyAdam"]
    model, table = sparse_model(case.make(**options))
    model.fit(SPARSE_IDS, np.zeros((4, 3)), batch_size=1, shuffle=False, verbose=0)
    expected = Expected(case, {"embeddings": table}, **options)
    for row in SPARSE_IDS:
        values = np.full((3, 2), options.get("loss_scale_factor", 1.0) / 6)
        expected.step({"embeddings": Rows(values, row)})
    kept = expected.averages if options.get("use_ema") else expected.x
    assert_close(model.get_weights()[0], kept["embeddings"], 4e-6, "table")


@pytest.mark.parametrize("inside", ["plain", "a_wrapper", "a_built_one"])
def test_sparse_tensors_of_torch_with_a_dynamic_loss_scale(inside):
    case = CASE["LazyAdam"]
    inner = case.make()
    if inside == "a_wrapper":
        inner = keras_tfopt.MovingAverage(inner)
    with policy("mixed_float16"):
        optimizer = keras_tfopt.LossScaleOptimizer(inner, initial_scale=1024.0)
        model, table = sparse_model(optimizer)
        if inside == "a_built_one":
            inner.build(model.trainable_variables)
        model.fit(SPARSE_IDS, np.zeros((4, 3)), batch_size=1, shuffle=False, verbose=0)
    expected = Expected(case, {"embeddings": table})
    for row in SPARSE_IDS:
        expected.step({"embeddings": Rows(np.full((3, 2), 1 / 6), row)})
    # The gradient of the outputs is a sixth, rounded to float16.
    assert_close(model.get_weights()[0], expected.x["embeddings"], 1e-4, "table")
    assert np.array_equal(model.get_weights()[0][3], table[3])


def test_sparse_tensors_of_torch_that_overflow_change_nothing():
    import torch

    optimizer = keras_tfopt.LossScaleOptimizer(CASE["LazyAdam"].make(), initial_scale=8.0)
    table = keras.Variable(np.ones((4, 2)), name="embeddings")
    optimizer.build([table])
    values = keras.ops.convert_to_tensor([[1.0, np.inf], [1.0, 1.0]])
    infinite = torch.sparse_coo_tensor([[1, 2]], values, (4, 2))
    optimizer.apply([infinite], [table])
    assert np.array_equal(keras.ops.convert_to_numpy(table), np.ones((4, 2)))
    assert float(optimizer.dynamic_scale.value) == 4.0
    assert int(optimizer.iterations.value) == 0
