"""Solvers of SciPy on models, beside NumPy, SciPy itself and closed forms."""

import re
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.solvers import minimize
from keras_tfopt.solvers.methods import METHODS

optimize = pytest.importorskip("scipy.optimize")
BACKEND = keras.backend.backend()
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(60, 3))
Y = X @ np.float64([[1.0], [-2.0], [0.5]]) + 0.3 + 0.1 * RANDOM.normal(size=(60, 1))
SOLUTION = np.linalg.lstsq(np.hstack([X, np.ones((60, 1))]), Y, rcond=None)[0].ravel()


class Dense(keras.layers.Layer):
    """A dense layer in float64; on PyTorch, Keras multiplies matrices in float32."""

    def __init__(self, width, activation=lambda x: x, use_bias=True, **options):
        super().__init__(dtype=options.pop("dtype", "float64"))
        self.width, self.activation, self.use_bias = width, activation, use_bias
        self.options = options

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.width), name="kernel", **self.options)
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")
        self.bias.trainable = self.use_bias

    def call(self, x):
        return self.activation(ops.sum(x[..., None] * self.kernel, axis=-2) + self.bias)


def loss(y_true, y_pred):
    """A mean of squares whose digits Keras leaves alone."""
    return ops.sum((y_true - y_pred) ** 2, axis=-1)


QUIET = {"loss": loss, "verbose": 0}


def linear(dtype="float64", **options):
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((3,), dtype=dtype), Dense(1, dtype=dtype, **options)])


def network():
    keras.utils.set_random_seed(3)
    layers = [Dense(5, lambda a: a / (1 + a * a)), Dense(1)]  # JAX rounds tanh
    return keras.Sequential([keras.Input((3,), dtype="float64"), *layers])


def vector(model):
    return np.concatenate(
        [ops.convert_to_numpy(v.value).ravel() for v in model.trainable_variables]
    )


def squares(w):
    """The loss of `network` and its gradient, in NumPy."""
    w1, b1, w2, b2 = np.split(w, [15, 20, 25])
    a = X @ w1.reshape(3, 5) + b1
    hidden = a / (1 + a**2)
    error = hidden @ w2[:, None] + b2 - Y
    back = 2 / 60 * error
    before = back @ w2[None] * (1 - a**2) / (1 + a**2) ** 2
    parts = X.T @ before, before.sum(0), hidden.T @ back, back.sum(0)
    return np.mean(error**2), np.concatenate([part.ravel() for part in parts])


class Watch(keras.callbacks.Callback):
    """Keep what callbacks see, and act in one of the iterations."""

    def __init__(self, at=None, act=None):
        super().__init__()
        self.at, self.act, self.weights, self.logs, self.begun = at, act, [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(vector(self.model))
        self.logs.append(logs)
        if epoch == self.at:
            self.act(self.model)


def stop(model):
    model.stop_training = True


def interrupt(model):
    raise KeyboardInterrupt


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
    """On a network in float64 whose loss and gradient NumPy computes."""
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
def test_second_derivatives_are_those_of_differences(method):
    """A method that takes them goes the same way with those of NumPy."""
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
    """The loss and a constraint have none: there is no gradient on the way that raises."""
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


def test_the_loss_is_that_of_evaluate():
    """With weights of samples and penalties of layers, however it is given."""
    weight = RANDOM.uniform(size=60)
    for given in ({"loss": "mse"}, {}):
        model = linear("float32", regularizer="l2")
        model.compile("sgd", loss="mse")
        history = minimize(model, X, Y, weight, options={"maxiter": 4}, verbose=0, **given)
        expected = model.evaluate(X, Y, sample_weight=weight, batch_size=60, verbose=0)
        assert history.history["loss"][-1] == pytest.approx(expected, rel=1e-6)


def test_a_loss_of_the_models_own():
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


class Pairs(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(16 * index, 16 * (index + 1))
        return X[part], Y[part]


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
    """The last one is smaller; the sum is that of all data at once."""
    whole, model = network(), network()
    minimize(whole, X, Y, options={"maxiter": 8}, **QUIET)
    history = minimize(model, **data, options={"maxiter": 8}, **QUIET)
    np.testing.assert_allclose(vector(model), vector(whole), rtol=1e-9, atol=1e-9)
    assert history.result.nit == 8


def test_data_stay_on_disk(tmp_path):
    """Of an array in a file, no more than a batch is read at a time."""
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


def test_states_stay_as_they_are():
    """Dropout is off, statistics are those of inference and do not change."""
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
    """Beside `scipy.optimize.lsq_linear`."""
    model = linear(use_bias=False)
    model.layers[0].kernel.assign([[0.5], [1.0], [0.0]])  # a simplex at a bound is flat
    bounds = {"kernel$": ([[0.0], [-1.0], [-np.inf]], [[np.inf], [4.0], [0.25]])}
    minimize(model, X, Y, bounds=bounds, method=method, **QUIET)
    expected = optimize.lsq_linear(X, Y.ravel(), ([0, -1, -np.inf], [np.inf, 4, 0.25])).x
    np.testing.assert_allclose(vector(model), expected, atol=2e-3)


def test_bounds_go_by_patterns():
    model = network()
    bounds = {f"{model.layers[0].name}/bias": (None, 0.0), re.compile("kernel$"): (-0.5, 0.5)}
    minimize(model, X, Y, bounds=bounds, **QUIET)
    kernels = [v for v in model.weights if v.name == "kernel"]
    assert max(np.abs(ops.convert_to_numpy(v)).max() for v in kernels) == 0.5
    assert ops.convert_to_numpy(model.layers[0].bias).max() <= 0
    assert ops.convert_to_numpy(model.layers[1].bias).max() > 0


@pytest.mark.spread
@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.constraints])
def test_constraints(method):
    """Least squares with a sum of 1 (Lagrange), and the first weight at least 1.5."""
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


# ---- Runs ----------------------------------------------------------------------------------------


def test_callbacks_of_keras(tmp_path):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(n, a, dtype="float64") for n, a in ((5, "tanh"), (1, None))]
    model = keras.Sequential([keras.Input((3,), dtype="float64"), *layers])
    watch = Watch()
    callbacks = [
        keras.callbacks.EarlyStopping("loss", min_delta=0.5, patience=3),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch:02d}.keras"),
        keras.callbacks.TensorBoard(tmp_path / "logs"),
        watch,
    ]
    history = minimize(model, X, Y, callbacks=callbacks, **QUIET)
    assert not history.result.success
    assert history.result.message == "A callback has stopped the run"
    count = len(history.epoch)
    assert watch.begun == history.epoch and watch.logs[-1].keys() == {"loss", "gradient_norm"}
    saved = [keras.saving.load_model(tmp_path / f"{n:02d}.keras") for n in range(1, count + 1)]
    for loaded, seen in zip(saved, watch.weights):
        np.testing.assert_array_equal(vector(loaded), seen)
    assert list((tmp_path / "logs").rglob("events*"))


@pytest.mark.spread
@pytest.mark.parametrize("act", [stop, interrupt], ids=["stopped", "interrupted"])
@pytest.mark.parametrize("method", [method.name for method in METHODS.values()])
def test_a_run_that_ends_early_leaves_the_best_weights(method, act):
    model = linear()
    watch = Watch(1, act)
    if act is interrupt:
        with pytest.raises(KeyboardInterrupt):
            minimize(model, X, Y, method=method, callbacks=[watch], **QUIET)
    else:
        history = minimize(model, X, Y, method=method, callbacks=[watch], **QUIET)
        assert history.result.nit == 2 and not history.result.success
    assert len(watch.weights) == 2
    best = min(watch.logs, key=lambda logs: logs["loss"])
    np.testing.assert_array_equal(vector(model), watch.weights[watch.logs.index(best)])


def test_a_killed_run_goes_on(tmp_path):
    model = network()
    with pytest.raises(KeyboardInterrupt):
        back_up = keras.callbacks.BackupAndRestore(tmp_path)
        minimize(model, X, Y, callbacks=[back_up, Watch(3, interrupt)], **QUIET)
    kept = vector(model)
    again, watch = network(), Watch()
    back_up = keras.callbacks.BackupAndRestore(tmp_path)
    history = minimize(again, X, Y, callbacks=[back_up, watch], options={"maxiter": 9}, **QUIET)
    assert history.epoch == [4, 5, 6, 7, 8]
    assert history.history["loss"][0] < squares(kept)[0]
    minimize(again, X, Y, callbacks=[watch], initial_epoch=20, options={"maxiter": 21}, **QUIET)
    assert watch.begun[-1] == 20
    done = minimize(again, X, Y, initial_epoch=5, options={"maxiter": 5}, **QUIET).result
    assert done.nit == 0 and not done.success
    np.testing.assert_array_equal(done.x, vector(again))


@pytest.mark.parametrize("method", ["L-BFGS-B", "BFGS", "SLSQP", "Nelder-Mead"])
def test_a_loss_that_is_no_number_ends_the_run(method):
    calls = []

    def loss(y_true, y_pred):
        return ops.mean((y_pred - y_true) ** 2) + ops.sqrt(y_pred[0, 0] - 0.4)  # NaN below 0.4

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.float32([[3.0]])])
    data = np.ones((4, 1)), -np.ones((4, 1))
    history = minimize(model, *data, loss=loss, method=method, callbacks=calls, verbose=0)
    assert not history.result.success and "The loss is nan in evaluation" in history.result.message
    assert 0.4 <= vector(model)[0] <= 3 and np.isfinite(history.result.fun)


def test_a_loss_that_is_never_a_number():
    model = linear()
    before = vector(model)
    history = minimize(model, np.full_like(X, np.nan), Y, **QUIET)
    assert history.result.message == "The loss is nan in evaluation 1"
    np.testing.assert_array_equal(vector(model), before)


def test_progress_is_printed(capsys):
    minimize(linear(), X, Y, loss="mse", verbose=2)
    assert "loss" in capsys.readouterr().out
    minimize(linear(), X, Y, loss="mse", options={"maxiter": 2})
    assert "2/2" in capsys.readouterr().out
    minimize(linear(), X, Y, loss="mse", verbose=0)
    assert not capsys.readouterr().out


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.spread
@pytest.mark.parametrize(
    "error, text, changed",
    [
        (TypeError, "`model` must be a keras.Model", dict(model="model")),
        (TypeError, "`method` must be a string", dict(method=3)),
        (ValueError, "'L-BFGS-B', .*Did you mean 'L-BFGS-B'", dict(method="lbfgsb")),
        (
            ValueError,
            "`bounds` must be empty with the method 'BFGS'",
            dict(method="bfgs", bounds={"k": (0, 1)}),
        ),
        (
            ValueError,
            "`constraints` must be empty with .*'L-BFGS-B'",
            dict(constraints=[{"type": "eq"}]),
        ),
        (ValueError, "'L-BFGS-B'.*Received: maxitre", dict(options={"maxitre": 3})),
        (TypeError, "`options` must be a dictionary", dict(options=3)),
        (ValueError, "maxiter.* must be an integer >= 0", dict(options={"maxiter": -1})),
        (ValueError, "patterns that match.*'kernelz'.*kernel", dict(bounds={"kernelz": (0, 1)})),
        (ValueError, "one pattern for a variable", dict(bounds={"kernel": (0, 1), "k": (0, 1)})),
        (ValueError, r"pairs \(low, high\)", dict(bounds={"kernel": 3})),
        (ValueError, "low <= high", dict(bounds={"kernel": (2, 1)})),
        (ValueError, "broadcast to the shape", dict(bounds={"kernel": ([1, 2], 3)})),
        (TypeError, "`bounds` must be a dictionary", dict(bounds=[(0, 1)])),
        (ValueError, "`type`, 'eq'", dict(method="SLSQP", constraints=[{"type": "eq"}])),
        (TypeError, "list of dictionaries", dict(method="SLSQP", constraints=3)),
        (ValueError, "`loss` must be a loss", dict(loss=None)),
        (ValueError, "`loss` must be None, the name", dict(loss="squares")),
        (ValueError, "reduction", dict(loss=keras.losses.MeanSquaredError("sum"), batch_size=8)),
        (TypeError, "not an iterator", dict(x=iter([1]), y=None)),
        (ValueError, "`y` must be None where `x` is a dataset", dict(x=Pairs())),
        (ValueError, "same number of samples", dict(y=Y[:3])),
        (ValueError, "`batch_size` must be an integer >= 1", dict(batch_size=0)),
        (ValueError, "`dtype` must be", dict(dtype="float16")),
        (ValueError, "`verbose` must be", dict(verbose=3)),
        (ValueError, "`initial_epoch` must be", dict(initial_epoch=-1)),
        (TypeError, "maxiter.* must be an integer", dict(options={"maxiter": "ten"})),
        (TypeError, "maxiter.* must be an integer", dict(options={"maxiter": 2.5})),
        (ValueError, "`tol` must be", dict(tol=-1.0)),
        (TypeError, "`callbacks` must be", dict(callbacks=[keras.callbacks.EarlyStopping])),
        (
            ValueError,
            "`fun`, a function of the model",
            dict(method="SLSQP", constraints=[{"type": "eq", "fun": lambda: 0.0}]),
        ),
    ],
)
def test_bad_input_changes_nothing(error, text, changed):
    model = linear()
    before = vector(model)
    with pytest.raises(error, match=f"(?s){text}"):
        minimize(**{"model": model, "x": X, "y": Y, **QUIET, **changed})
    np.testing.assert_array_equal(vector(model), before)


def test_a_function_of_constraints_is_a_scalar():
    constraints = [{"type": "eq", "fun": lambda model: model.layers[0].kernel}]
    with pytest.raises(ValueError, match=r"scalar tensor.*Received: shape \(3, 1\)"):
        minimize(linear(), X, Y, method="SLSQP", constraints=constraints, **QUIET)


@pytest.mark.parametrize("method, width", [("Nelder-Mead", 600), ("BFGS", 6000)])
def test_methods_that_are_too_slow_for_large_models(method, width):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width)])
    with pytest.raises(ValueError, match=f"Received: {method!r} for {2 * width:,} parameters"):
        minimize(model, np.ones((1, 1)), np.ones((1, width)), method=method, **QUIET)


def test_a_model_without_variables():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(2.0)])
    with pytest.raises(ValueError, match="must have trainable variables"):
        minimize(model, X, X, **QUIET)


def test_scipy_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"pip install 'keras_tfopt\[solvers\]'"):
        minimize(linear(), X, Y, **QUIET)
