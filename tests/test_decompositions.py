"""Decompositions of batches of matrices, and of many matrices in one step."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.engine import eigh, singular_values
from tests.helpers.programs import output_of
from tests.helpers.stepping import to_numpy

RANDOM = np.random.default_rng(0)
MATRICES = RANDOM.standard_normal((2, 3, 5, 4))


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 4)], ids=str)
def test_batches_are_decomposed_as_by_numpy(shape):
    given = MATRICES[(0,) * (4 - len(shape))]
    found = to_numpy(singular_values(ops.convert_to_tensor(given)))
    np.testing.assert_allclose(found, np.linalg.svd(given, compute_uv=False), rtol=1e-12)
    square = given @ np.swapaxes(given, -1, -2)
    values, vectors = map(to_numpy, eigh(ops.convert_to_tensor(square)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(square), atol=1e-12)
    np.testing.assert_allclose(square @ vectors, vectors * values[..., None, :], atol=1e-12)


TRAINS = """
import keras
import numpy as np

import keras_tfopt

widths = (128, 200, 96, 256, 64, 10)
model = keras.Sequential([keras.Input((64,)), *map(keras.layers.Dense, widths)])
optimizer = keras_tfopt.DistributedShampoo(
    beta_2=0.99, epsilon=1e-8, max_preconditioner_dim=128, precondition_frequency=1
)
model.compile(optimizer, "mse")
x = np.random.default_rng(0).standard_normal((256, 64)).astype("float32")
model.fit(x, x[:, :10], batch_size=32, verbose=0)
print("trained", int(optimizer.iterations))
"""


@pytest.mark.slow
@pytest.mark.backends("jax", reason="only jaxlib's batches wait for other threads")
def test_decompositions_of_a_step_do_not_wait_for_each_other():
    assert "trained 8" in output_of("-c", TRAINS, timeout=300)


@pytest.mark.backends("jax", reason="only JAX rounds factors by default, on GPUs and TPUs")
@pytest.mark.parametrize(("chosen", "found"), [(None, "HIGHEST"), ("tensorfloat32", "HIGH")])
def test_products_of_a_step_are_as_exact_as_float32(chosen, found):
    import jax

    optimizer, x = keras_tfopt.Shampoo(0.1), keras.Variable(np.ones((3, 4), "float32"))
    optimizer.build([x])
    state = [v.value for v in optimizer.variables]
    with jax.default_matmul_precision(chosen):  # None is JAX's default
        step = jax.make_jaxpr(optimizer.stateless_apply)(state, [x.value], [x.value])
    precisions = re.findall(r"precision=\(Precision\.(\w+), Precision\.(\w+)\)", str(step))
    assert str(step).count("dot_general[") == len(precisions) >= 4
    assert {*precisions} == {(found, found)}
