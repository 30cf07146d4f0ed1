"""SciPy's solvers on models, against NumPy, SciPy alone and closed forms."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.solvers import minimize
from keras_tfopt.solvers.methods import METHODS
from tests.helpers.solving import (
    QUIET,
    RANDOM,
    SOLUTION,
    Pairs,
    Watch,
    X,
    Y,
    linear,
    network,
    squares,
    vector,
)
from tests.helpers.stepping import BACKEND

optimize = pytest.importorskip("scipy.optimize")


# ---- Minima and iterates -------------------------------------------------------------------------


@pytest.mark.spread
@pytest.mark.parametrize("method", [method.name for method in METHODS.values()])
def test_every_method_finds_the_least_squares(method):
    model = linear()
    history = minimize(model, X, Y, method=method, **QUIET, tol=1e-10)
    np.testing.assert_allclose(vector(model), SOLUTION, atol=2e-4)
    assert history.result.fun == pytest.approx(
        np.mean((X @ SOLUTION[:3, None] + SOLUTION[3] - Y) ** 2)
    )
    assert history.epoch == list(range(len(history.epoch))) and len(history.epoch) > 1


@pytest.mark.parametrize("method", ["L-BFGS-B", "BFGS", "CG", "SLSQP"])
def test_iterates_are_those_of_scipy_alone(method):
    """SciPy alone minimizes the same loss, with loss and gradient computed by NumPy."""
    model, theirs = network(), []
    start = vector(model)
    watch = Watch()
    options = {"maxiter": 15}
    history = minimize(model, X, Y, method=method, callbacks=[watch], options=options, **QUIET)
    result = optimize.minimize(
        squares,
        start,
        method=method,
        jac=True,
        options=options,
        callback=lambda x: theirs.append(x.copy()),
    )
    precision = {"rtol": 1e-7, "atol": 1e-9}
    assert len(watch.weights) == len(theirs) and history.result.nfev == result.nfev
    np.testing.assert_allclose(watch.weights, theirs, **precision)
    np.testing.assert_allclose(vector(model), result.x, **precision)
    losses = [squares(x)[0] for x in theirs]
    np.testing.assert_allclose(history.history["loss"], losses, **precision)
    norms = [np.abs(squares(x)[1]).max() for x in theirs]
    np.testing.assert_allclose(history.history["gradient_norm"], norms, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["Newton-CG", "trust-exact"])
def test_second_derivatives_equal_differences_of_gradients(method):
    """SciPy alone takes the same steps with these differences."""
    model = network()
    start, size = vector(model), 26
    minimize(model, X, Y, method=method, options={"maxiter": 3}, **QUIET)

    def hessian(w):
        units = 1e-5 * np.eye(size)
        return np.stack([(squares(w + u)[1] - squares(w - u)[1]) / 2e-5 for u in units])

    result = optimize.minimize(
        squares, start, method=method, jac=True, hess=hessian, options={"maxiter": 3}
    )
    np.testing.assert_allclose(vector(model), result.x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["Nelder-Mead", "COBYLA"])
def test_a_method_without_gradients_computes_none(method):
    """Computing a gradient of this loss or constraint would raise an error."""
    constraints = {"type": "ineq", "fun": lambda model: without(model.layers[0].kernel[0, 0]) - 1.5}
    given = {"constraints": constraints} if method == "COBYLA" else {}

    def loss(y_true, y_pred):
        return ops.sum(without(y_true - y_pred) ** 2, axis=-1)

    model = linear()
    minimize(model, X, Y, method=method, loss=loss, **given, verbose=0)
    assert (vector(model)[0] > 1.4) == bool(given)
    with pytest.raises(ZeroDivisionError):
        minimize(model, X, Y, loss=loss, verbose=0)


@ops.custom_gradient
def without(x):
    def gradient(*args, upstream=None):
        raise ZeroDivisionError

    return x, gradient


def test_the_loss_equals_that_of_evaluate():
    """The loss includes sample weights and regularizers."""
    weight = RANDOM.uniform(size=60)
    for given in ({"loss": "mse"}, {}):
        model = linear("float32", regularizer="l2")
        model.compile("sgd", loss="mse")
        history = minimize(model, X, Y, weight, options={"maxiter": 4}, verbose=0, **given)
        expected = model.evaluate(X, Y, sample_weight=weight, batch_size=60, verbose=0)
        assert history.history["loss"][-1] == pytest.approx(expected, rel=1e-6)


def test_a_model_with_a_compute_loss_of_its_own():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(2,), initializer="zeros")

        def call(self, x):
            return x * self.w

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.sum((y_pred - y) ** 4, axis=-1))

    model = Model()
    data = np.ones((5, 2), "float32"), np.float32([[2.0, -3.0]] * 5)
    history = minimize(model, *data, verbose=0, options={"gtol": 1e-9})
    np.testing.assert_allclose(vector(model), [2, -3], atol=0.02)
    assert history.result.fun < 1e-6


# ---- Data ----------------------------------------------------------------------------------------


def datasets():
    yield "arrays", dict(x=X, y=Y, batch_size=16)
    yield "PyDataset", dict(x=Pairs())
    if BACKEND == "tensorflow":
        import tensorflow as tf

        yield "tf.data", dict(x=tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    if BACKEND == "torch":
        import torch

        pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
        yield "DataLoader", dict(x=torch.utils.data.DataLoader(pairs, batch_size=16))


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in datasets()])
def test_batches_are_summed(data):
    """Batches, of which the last is smaller, give the loss of all data at once."""
    whole, model = network(), network()
    minimize(whole, X, Y, options={"maxiter": 8}, **QUIET)
    history = minimize(model, **data, options={"maxiter": 8}, **QUIET)
    np.testing.assert_allclose(vector(model), vector(whole), rtol=1e-9, atol=1e-9)
    assert history.result.nit == 8


@pytest.mark.parametrize("form", [lambda loss: loss, lambda loss: [loss]])
def test_sums_over_batches_are_refused(form):
    model = network()
    model.compile("adam", form(keras.losses.MeanSquaredError(reduction="sum")))
    with pytest.raises(ValueError, match="must have the reduction 'sum_over_batch_size'.*'sum'"):
        minimize(model, X, Y, batch_size=16, verbose=0)
    minimize(model, X, Y, verbose=0, options={"maxiter": 2})  # one batch is the whole


def test_data_stay_on_disk(tmp_path):
    """A run reads an array in a file batch by batch."""
    np.save(tmp_path / "x.npy", X)
    parts = []

    class OnDisk(np.memmap):
        def __getitem__(self, index):
            part = super().__getitem__(index)
            parts.append(len(part))
            return np.asarray(part)

    x = np.load(tmp_path / "x.npy", mmap_mode="r").view(OnDisk)
    model = linear()
    minimize(model, x, Y, batch_size=7, **QUIET)
    assert max(parts) == 7
    np.testing.assert_allclose(vector(model), SOLUTION, atol=1e-4)


def test_several_inputs_and_a_table_of_rows():
    first, second = keras.Input((3,), name="a"), keras.Input((), dtype="int32", name="b")
    keras.utils.set_random_seed(0)
    row = keras_tfopt.layers.Embedding(5, 1)(second)
    model = keras.Model({"a": first, "b": second}, keras.layers.Dense(1)(first) + row)
    ids = np.arange(60) % 4  # the last row never occurs
    last = ops.convert_to_numpy(table_of(model))[4]
    targets = Y + np.float64([[1.0], [2.0], [3.0], [4.0]])[ids]
    history = minimize(model, {"a": X, "b": ids}, targets, options={"maxiter": 100}, **QUIET)
    design = np.hstack([X, np.eye(4)[ids]])
    solution, (rest,), *_ = np.linalg.lstsq(design, targets, rcond=None)
    assert history.result.fun == pytest.approx(rest / 60, rel=1e-3)
    np.testing.assert_array_equal(ops.convert_to_numpy(table_of(model))[4], last)


def table_of(model):
    return next(v for v in model.weights if tuple(v.shape) == (5, 1))


def test_dtype_of_the_vector():
    for dtype in ("float32", "float64"):
        history = minimize(linear("float32"), X, Y, method="BFGS", dtype=dtype, **QUIET)
        assert history.result.x.dtype == dtype


def test_layers_run_as_in_inference():
    """Dropout is off, and statistics of normalization do not change."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    before = [ops.convert_to_numpy(v) for v in model.non_trainable_variables]
    history = minimize(model, X, Y, **QUIET)
    for value, variable in zip(before, model.non_trainable_variables):
        np.testing.assert_array_equal(value, ops.convert_to_numpy(variable))
    assert history.result.fun == pytest.approx(
        np.mean((model.predict(X, verbose=0) - Y) ** 2), 1e-4
    )


# ---- Bounds and constraints ----------------------------------------------------------------------


@pytest.mark.spread
@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.bounds])
def test_bounds(method):
    """`scipy.optimize.lsq_linear` finds the same minimum."""
    model = linear(use_bias=False)
    model.layers[0].kernel.assign(
        [[0.5], [1.0], [0.0]]
    )  # a simplex that starts at a bound would be flat
    bounds = {"kernel$": ([[0.0], [-1.0], [-np.inf]], [[np.inf], [4.0], [0.25]])}
    minimize(model, X, Y, bounds=bounds, method=method, **QUIET)
    expected = optimize.lsq_linear(X, Y.ravel(), ([0, -1, -np.inf], [np.inf, 4, 0.25])).x
    np.testing.assert_allclose(vector(model), expected, atol=2e-3)


def test_patterns_choose_the_variables_with_bounds():
    model = network()
    bounds = {f"{model.layers[0].name}/bias": (None, 0.0), re.compile("kernel$"): (-0.5, 0.5)}
    minimize(model, X, Y, bounds=bounds, **QUIET)
    kernels = [v for v in model.weights if v.name == "kernel"]
    assert max(np.abs(ops.convert_to_numpy(v)).max() for v in kernels) == 0.5
    assert ops.convert_to_numpy(model.layers[0].bias).max() <= 0
    assert ops.convert_to_numpy(model.layers[1].bias).max() > 0


def constrained(constraint):
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_constraint=constraint)]
    )


def test_non_negative_layers_have_bounds():
    """SciPy alone finds the same weights."""
    model = constrained("non_neg")
    minimize(model, X, Y, bounds={"kernel": (None, 0.5)}, **QUIET, tol=1e-12)
    inputs = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    limits = [0, 0, 0, -np.inf], [0.5, 0.5, 0.5, np.inf]
    expected = optimize.lsq_linear(inputs, Y[:, 0], limits, tol=1e-12).x
    np.testing.assert_allclose(vector(model), expected, atol=1e-3)
    assert expected.min() < 1e-9, "the constraint matters"


def test_other_constraints_of_layers_are_refused():
    for constraint, method, text in (
        ("unit_norm", "L-BFGS-B", "but NonNeg.*UnitNorm of '.*kernel'"),
        ("non_neg", "CG", "`bounds` must be empty with the method 'CG'.*NonNeg"),
    ):
        model = constrained(constraint)
        before = vector(model)
        with pytest.raises(ValueError, match=text):
            minimize(model, X, Y, method=method, **QUIET)
        np.testing.assert_array_equal(vector(model), before)


def test_data_have_the_dtype_of_a_model_that_is_built_by_them():
    x = RANDOM.normal(size=(50, 3))
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, dtype="float64")])
    weights = np.array([[0.3], [1.1], [-0.7]])
    options = {"gtol": 1e-16, "ftol": 0.0}
    minimize(model, x, x @ weights, loss="mse", verbose=0, tol=1e-30, options=options)
    # On the other backends, the loss itself is rounded to float32.
    tolerance = 1e-12 if BACKEND == "tensorflow" else 1e-6
    np.testing.assert_allclose(vector(model), weights[:, 0], atol=tolerance)


@pytest.mark.spread
@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.constraints])
def test_constraints(method):
    """The sum of the weights is 1, and the first one at least 1.5. Lagrange gives the minimum."""
    model = linear(use_bias=False)
    constraints = [
        {"type": "eq", "fun": lambda model: ops.sum(model.layers[0].kernel) - 1},
        {"type": "ineq", "fun": lambda model: model.layers[0].kernel[0, 0] - 1.5},
    ]
    minimize(model, X, Y, constraints=constraints, method=method, **QUIET)
    # With the first at its limit, the other two add up to -0.5.
    gram, right = X.T @ X, X.T @ Y.ravel()
    unit, ones = np.eye(3)[0], np.ones(3)
    system = np.block(
        [[gram, np.stack([ones, unit], 1)], [np.stack([ones, unit]), np.zeros((2, 2))]]
    )
    expected = np.linalg.solve(system, np.concatenate([right, [1, 1.5]]))[:3]
    np.testing.assert_allclose(vector(model), expected, atol=2e-3)
