"""Roots of matrices, against NumPy in float64 and against recordings of TensorFlow 1."""

import json

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import to_numpy

TF1 = GOLDEN / "tf1"


def matrix(n, condition, scale, seed=0):
    """Return eigenvalues from scale / condition to scale, and eigenvectors."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    values = scale * np.geomspace(1 / condition, 1, n)
    return values, q


def power(values, q, exponent):
    return (q * values**exponent) @ q.T


@pytest.mark.parametrize("iterative", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e8])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_inverse_roots(n, p, scale, iterative):
    """The norm of the matrix does not matter, even if squares underflow."""
    values, q = matrix(n, 100.0 if n > 1 else 1.0, scale)
    given = keras.ops.convert_to_tensor(power(values, q, 1).astype("float32"))
    root = to_numpy(keras_tfopt.matrix_inverse_pth_root(given, p, iterative=iterative))
    expected = power(values, q, -1 / p)
    # Rounding of the matrix, times its condition; the iteration adds 1e-6 of the norm.
    assert np.max(np.abs(root - expected)) <= 5e-4 * np.max(np.abs(expected))


@pytest.mark.parametrize("iterative", [False, True])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_inverse_roots_in_float64(p, iterative):
    values, q = matrix(30, 1e3, 0.01)
    given = keras.ops.convert_to_tensor(power(values, q, 1), dtype="float64")
    root = to_numpy(keras_tfopt.matrix_inverse_pth_root(given, p, iterative=iterative))
    expected = power(values, q, -1 / p)
    assert root.dtype == "float64"
    assert np.max(np.abs(root - expected)) <= 1e-8 * np.max(np.abs(expected))


@pytest.mark.parametrize("iterative", [False, True])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e8])
def test_square_roots(scale, iterative):
    values, q = matrix(20, 100.0, scale)
    values[0] = 0.0  # semi-definite
    given = keras.ops.convert_to_tensor(power(values, q, 1).astype("float32"))
    root = to_numpy(keras_tfopt.matrix_square_root(given, iterative=iterative))
    expected = power(values, q, 0.5)
    # Rounding turns an eigenvalue of zero into 1e-7, whose root is 3e-4.
    assert np.max(np.abs(root - expected)) <= 1e-3 * np.max(np.abs(expected))


def test_zero_has_the_square_root_zero():
    for iterative in (False, True):
        root = keras_tfopt.matrix_square_root(np.zeros((3, 3), "float32"), iterative=iterative)
        assert not np.any(to_numpy(root))


def test_small_eigenvalues_count_as_epsilon():
    root = keras_tfopt.matrix_inverse_pth_root(np.diag([4.0, 1e-9]), 2, epsilon=0.01)
    np.testing.assert_allclose(to_numpy(root), np.diag([0.5, 10.0]), rtol=1e-5, atol=1e-6)


def test_a_root_need_not_be_an_integer_by_eigenvalues():
    root = keras_tfopt.matrix_inverse_pth_root(np.diag([4.0, 9.0]), 0.8, iterative=False)
    np.testing.assert_allclose(to_numpy(root), np.diag([4.0**-1.25, 9.0**-1.25]), rtol=1e-5)


(ENTRY,) = (
    entry
    for entry in json.loads((TF1 / "manifest.json").read_text())["cases"]
    if entry["file"] == "matrix_functions__tables.npz"
)
every_converged_table = pytest.mark.parametrize(
    "table",
    [table for table in ENTRY["tables"] if table["converged"]],
    ids=lambda table: f"{table['table']}-{table['fn']}",
)


def recorded(table):
    with np.load(TF1 / "matrix_functions__tables.npz") as arrays:
        return tuple(arrays[f"{table['table']}/{name}"] for name in ("input", "output"))


def ours(table, given, iterative):
    function, arguments = getattr(keras_tfopt, table["fn"]), []
    if "alpha" in table["kwargs"]:
        arguments = [round(-1 / table["kwargs"]["alpha"], 6)]
    return to_numpy(function(given, *arguments, iterative=iterative))


@pytest.mark.everywhere
@pytest.mark.parametrize("iterative", [False, True])
@every_converged_table
def test_recordings_of_the_original_where_it_converged(table, iterative):
    given, expected = recorded(table)
    given = given + table["kwargs"].get("ridge_epsilon", 0.0) * np.eye(len(given), dtype="float32")
    root = ours(table, given, iterative)
    assert np.max(np.abs(root - expected)) <= 2e-3 * np.max(np.abs(expected))


@pytest.mark.everywhere
@every_converged_table
def test_recordings_of_the_original_under_its_name(table):
    given, expected = recorded(table)
    root = getattr(legacy, table["fn"])(given, table["mat_size"], **table["kwargs"])
    np.testing.assert_allclose(to_numpy(root), expected, **ENTRY["tolerance"])


@pytest.mark.parametrize("iterative", [False, True])
def test_the_square_root_of_a_small_matrix_which_the_original_gets_wrong(iterative):
    (table,) = (t for t in ENTRY["tables"] if t["fn"] == "matrix_square_root" and t["mat_size"] == 4
                and not t["converged"] and not t["kwargs"])  # fmt: skip
    given, theirs = recorded(table)
    root = ours(table, given, iterative)
    np.testing.assert_allclose(root @ root, given, atol=1e-5 * np.max(given))
    assert np.max(np.abs(theirs @ theirs - given)) > 0.1 * np.max(given)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.ones((2, 3)), 2), ValueError, r"shape \(n, n\).*\(2, 3\)"),
        ((np.ones(3), 2), ValueError, r"shape \(n, n\)"),
        ((np.eye(2), 0), ValueError, "`p`"),
        ((np.eye(2), "2"), TypeError, "`p`"),
        ((np.eye(2), 2, -1.0), ValueError, "`epsilon`"),
        ((np.eye(2), 2.5, 0.0, True), ValueError, "`p` must be an integer"),
        ((np.eye(2), 2, 0.0, "yes"), TypeError, "`iterative`"),
        ((np.eye(2, dtype="int32"), 2), TypeError, "float32 or float64"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        keras_tfopt.matrix_inverse_pth_root(*arguments)
