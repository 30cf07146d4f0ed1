"""Compiled steps of JAX update variables and state in place, and int8 slots in parts.

Tests read how much memory XLA reserves for a step. A copy of a table or of a slot would show there.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import version_of

pytestmark = pytest.mark.backends("jax", reason="only JAX tells the memory of a step")
ROWS, WIDTH = 20_000, 32


def temporary_bytes(optimizer, gradient, name="embeddings"):
    """Return how many bytes XLA reserves for a step, beyond its arguments and results."""
    import jax

    table = keras.Variable(np.ones(gradient.shape, "float32"), name=name)
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
    # The step needs a mark for each row, and a piece of 1,024 rows at a time.
    assert used < ROWS * WIDTH * 4 * 0.6


def test_accumulation_does_not_copy_the_state():
    gradient = np.zeros((ROWS, WIDTH), "float32")
    ours = temporary_bytes(keras_tfopt.LazyAdam(0.01, gradient_accumulation_steps=2), gradient)
    # The step keeps the sum of gradients and their mean. It updates the table and moments in place.
    # XLA of JAX 0.6 also keeps a copy of the gradient.
    arrays = 2.5 if version_of("jax") >= (0, 7) else 3.5
    assert ours < arrays * ROWS * WIDTH * 4


@pytest.mark.parametrize("name", ["Adam", "Lion", "ADOPT", "Adan", "LaProp", "AdEMAMix"])
def test_rules_of_elements_need_no_memory_of_their_own(name):
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("accelerators write several arrays in one loop")
    gradient = np.zeros((1024, 1024), "float32")
    used = temporary_bytes(getattr(keras_tfopt, name)(0.01), gradient, "kernel")
    assert used < 0.01 * gradient.nbytes


@pytest.mark.parametrize("cls", [keras_tfopt.Adam, keras_tfopt.Momentum])
def test_int8_slots_of_a_large_variable_are_decoded_in_parts(cls):
    """Decoding whole slots would need more than twice the memory of the variable."""
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("accelerators decode whole slots")
    gradient = np.zeros((2048, 2048), "float32")
    used = temporary_bytes(cls(0.01, slot_dtype="int8"), gradient, "kernel")
    assert used < 0.6 * gradient.nbytes  # measured: Adam 0.47, Momentum 0.33
