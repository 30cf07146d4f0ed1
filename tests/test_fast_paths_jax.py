"""Compiled steps of JAX update tables and state in place: the memory of a step shows it."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.stepping import version_of

pytestmark = pytest.mark.backends("jax", reason="only JAX tells the memory of a step")
ROWS, WIDTH = 20_000, 32


def temporary_bytes(optimizer, gradient):
    import jax

    table = keras.Variable(np.ones((ROWS, WIDTH), "float32"), name="embeddings")
    optimizer.build([table])
    step = jax.jit(
        lambda x, state, g: optimizer.stateless_apply(state, [g], [x]), donate_argnums=(0, 1)
    )
    state = [v.value for v in optimizer.variables]
    analysis = step.lower(table.value, state, gradient).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def test_row_updates_are_in_place():
    gradient = keras_tfopt.RowGradient(np.ones((8, WIDTH), "float32"), np.arange(8), (ROWS, WIDTH))
    used = temporary_bytes(keras_tfopt.LazyAdam(0.01), gradient)
    assert used < ROWS * WIDTH * 4 / 10


def test_touched_rows_of_a_dense_gradient_are_updated_in_place():
    gradient = np.zeros((ROWS, WIDTH), "float32")
    used = temporary_bytes(keras_tfopt.LazyAdam(0.01), gradient)
    # Of the order of a mark for each row and a piece of 1,024 rows, not of a table.
    assert used < ROWS * WIDTH * 4 * 0.6


def test_accumulation_does_not_copy_the_state():
    gradient = np.zeros((ROWS, WIDTH), "float32")
    ours = temporary_bytes(keras_tfopt.LazyAdam(0.01, gradient_accumulation_steps=2), gradient)
    # The sum of the gradients and their mean; table and moments are updated where they are. XLA
    # of JAX 0.6 keeps the gradient apart.
    arrays = 2.5 if version_of("jax") >= (0, 7) else 3.5
    assert ours < arrays * ROWS * WIDTH * 4
