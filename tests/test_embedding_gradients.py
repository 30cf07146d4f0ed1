"""`keras_tfopt.layers.Embedding`: ids out of range, its gradient, and the memory of a step."""

import copy

import keras
import numpy as np
import pytest
from keras import layers

import keras_tfopt
from keras_tfopt.engine import look_up
from keras_tfopt.engine.rows import deliver_rows
from tests.cells import exhaustive
from tests.helpers.embedding_jobs import compiled, tables_of
from tests.helpers.embedding_models import BATCH, IDS, RATE, TARGETS, VOCABULARY, WIDTH
from tests.helpers.stepping import BACKEND, make_variable, policy, to_numpy

# ---- Ids out of range ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [VOCABULARY, -VOCABULARY - 1])
def test_out_of_range_is_an_error_in_eager_calls(wrong):
    ids = IDS[0][:BATCH].copy()
    ids[3, 2] = wrong
    message = rf"has {VOCABULARY} rows. Received: id {wrong}"
    layer = keras_tfopt.layers.Embedding(VOCABULARY, WIDTH)
    with pytest.raises(ValueError, match=message):
        layer(ids)
    model = compiled(keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse", run_eagerly=True, jit_compile=False)
    before = [to_numpy(v) for v in model.weights]
    with pytest.raises(ValueError, match=message):
        model.train_on_batch(ids, TARGETS[:BATCH])
    for old, v in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, to_numpy(v))


@pytest.mark.backends("tensorflow", "jax", reason="PyTorch compiles no whole steps")
def test_out_of_range_in_compiled_steps():
    """A compiled step does not raise. The optimizer counts the wrong id."""
    ids = IDS[0][:BATCH].copy()
    ids[3, 2] = VOCABULARY
    model = compiled(keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse", jit_compile=True)
    table = tables_of(model)[0]
    before = to_numpy(table)
    loss = model.train_on_batch(ids, TARGETS[:BATCH])
    assert np.isnan(loss) == (BACKEND == "jax")
    resting = np.setdiff1d(np.arange(VOCABULARY), ids)
    np.testing.assert_array_equal(before[resting], to_numpy(table)[resting])
    with pytest.raises(ValueError, match="1 indices out of range in earlier compiled steps"):
        model.optimizer._pipeline.mover.raise_refused_rows()


# ---- The gradient itself -------------------------------------------------------------------------


@pytest.mark.backends("jax", reason="other backends raise an error, or clip")
@pytest.mark.parametrize("trains", [False, True])
def test_rows_out_of_range_are_nan_in_compiled_lookups(trains):
    import jax

    table = make_variable("embeddings", np.ones((VOCABULARY, WIDTH)))
    ids = np.array([-VOCABULARY - 1, -VOCABULARY, -1, 0, VOCABULARY - 1, VOCABULARY], "int32")

    def sums(value, ids):
        with keras.StatelessScope(state_mapping=[(table, value)]):
            rows = keras.ops.sum(look_up(table, ids), axis=1)
        return keras.ops.sum(rows), rows

    if trains:
        (_, rows), _ = jax.jit(jax.value_and_grad(sums, has_aux=True))(table.value, ids)
    else:
        _, rows = jax.jit(sums)(table.value, ids)
    assert np.isnan(to_numpy(rows)).tolist() == [True, False, False, False, False, True]


@pytest.mark.backends("torch", reason="about tensors of torch")
def test_the_lazy_gradient_is_an_ordinary_tensor_for_other_code():
    import torch

    table = make_variable("table/embeddings", np.zeros((VOCABULARY, WIDTH)))
    deliver_rows(table)

    def gradient(factor=1.0):
        table.value.grad = None
        ids = keras.ops.convert_to_tensor([3, 1, 3])
        (factor * look_up(table, ids)).sum().backward()
        (factor * look_up(table, ids[:1])).sum().backward()  # into the same `grad`
        return table.value.grad

    dense = np.zeros((VOCABULARY, WIDTH), "float32")
    dense[[3, 1]] = [[3], [1]]
    assert gradient().rows() is not None
    np.testing.assert_array_equal(gradient().cpu().numpy(), dense)
    np.testing.assert_array_equal((gradient() + 1).cpu().numpy(), dense + 1)
    np.testing.assert_array_equal(
        torch.cat([gradient(), gradient()]).cpu().numpy(), [*dense, *dense]
    )
    np.testing.assert_array_equal(copy.deepcopy(gradient()).cpu().numpy(), dense)
    np.testing.assert_array_equal((gradient() / 2).rows().values.cpu().numpy()[:, 0], [0.5] * 4)
    written = gradient()
    written.mul_(2)
    assert written.rows() is None
    np.testing.assert_array_equal(written.cpu().numpy(), 2 * dense)
    torch.nn.utils.clip_grad_norm_([table.value], 1e-3)
    np.testing.assert_allclose(np.linalg.norm(table.value.grad.cpu().numpy()), 1e-3, rtol=1e-3)
    optimizer = torch.optim.Adam([table.value], 0.1)
    gradient()
    optimizer.step()
    moved = np.flatnonzero(to_numpy(table).any(axis=1))
    assert moved.tolist() == [1, 3]


@pytest.mark.backends("jax", reason="what XLA says of a step compiled by jax.jit")
@pytest.mark.parametrize("precision", ["float32", exhaustive("mixed_bfloat16"), "mixed_float16"])
def test_memory_of_a_compiled_step(precision):
    """Memory is for the touched rows and not for the table, which is written in place."""
    scale = keras_tfopt.LossScaleOptimizer if precision == "mixed_float16" else lambda inner: inner
    import jax

    rows, width, count = 200_000, 32, 1024
    table = 4 * rows * width

    def analysis(layer):
        model = keras.Sequential(
            [
                keras.Input((8,), dtype="int32"),
                layer(rows, width),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(scale(keras_tfopt.LazyAdam(RATE)), "mse")
        model.optimizer.build(model.trainable_variables)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple([v.value for v in group] for group in groups)
        batch = np.zeros((count // 8, 8), "int32"), np.zeros((count // 8, 1), "float32")
        step = jax.jit(model.train_step, donate_argnums=0)
        return step.lower(state, batch).compile().memory_analysis()

    with policy(precision):
        memory = analysis(keras_tfopt.layers.Embedding)
    assert memory.alias_size_in_bytes >= 3 * table
    assert memory.temp_size_in_bytes < 32 * 4 * count * width < table / 4
    if precision == "float32":
        assert analysis(layers.Embedding).temp_size_in_bytes >= table  # the dense gradient
