"""Runs of solvers on models: callbacks, early ends, progress, and bad input."""

import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfopt.solvers import minimize
from keras_tfopt.solvers.methods import METHODS
from tests.helpers.solving import (
    QUIET,
    Pairs,
    Watch,
    X,
    Y,
    interrupt,
    linear,
    network,
    squares,
    stop,
    vector,
)

pytest.importorskip("scipy.optimize")

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


def test_an_interrupted_run_continues(tmp_path):
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
def test_a_loss_of_nan_ends_the_run(method):
    calls = []

    def loss(y_true, y_pred):
        return ops.mean((y_pred - y_true) ** 2) + ops.sqrt(y_pred[0, 0] - 0.4)  # NaN below 0.4

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.float32([[3.0]])])
    data = np.ones((4, 1)), -np.ones((4, 1))
    history = minimize(model, *data, loss=loss, method=method, callbacks=calls, verbose=0)
    assert not history.result.success and "The loss is nan in evaluation" in history.result.message
    assert 0.4 <= vector(model)[0] <= 3 and np.isfinite(history.result.fun)
    assert np.all(np.isfinite(history.history["loss"])) and history.history["loss"]


def test_a_loss_that_is_always_nan():
    model = linear()
    before = vector(model)
    history = minimize(model, np.full_like(X, np.nan), Y, **QUIET)
    assert history.result.message == "The loss is nan in evaluation 1"
    assert len(history.history["loss"]) == 1 and np.isnan(history.history["loss"][0])
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
        (ValueError, "`y` must have the targets", dict(y=None)),
        (ValueError, "same number of samples", dict(y=Y[:3])),
        (ValueError, "same number of samples", dict(y=[])),
        (ValueError, "same number of samples", dict(sample_weight=[])),
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


def test_layers_of_float8_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.quantize("float8")
    before = model.get_weights()
    with pytest.raises(ValueError, match="no layers of float8.*_scale'"):
        minimize(model, X, Y, **QUIET)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_constraint_must_be_a_scalar():
    constraints = [{"type": "eq", "fun": lambda model: model.layers[0].kernel}]
    with pytest.raises(ValueError, match=r"scalar tensor.*Received: shape \(3, 1\)"):
        minimize(linear(), X, Y, method="SLSQP", constraints=constraints, **QUIET)


def test_a_run_that_begins_at_a_solution_has_its_loss():
    model = linear()
    minimize(model, X, Y, **QUIET)
    end = vector(model)
    history = minimize(model, X, Y, **QUIET)
    np.testing.assert_array_equal(vector(model), end)
    assert history.epoch == [0] and len(history.history["loss"]) == 1
    assert history.history["loss"][0] == pytest.approx(history.result.fun)


@pytest.mark.parametrize("method, width", [("Nelder-Mead", 600), ("BFGS", 6000)])
def test_methods_that_are_too_slow_for_large_models(method, width):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width)])
    with pytest.raises(ValueError, match=f"Received: {method!r} for {2 * width:,} parameters"):
        minimize(model, np.ones((1, 1)), np.ones((1, width)), method=method, **QUIET)


def test_a_model_without_variables():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(2.0)])
    with pytest.raises(ValueError, match="must have trainable variables"):
        minimize(model, X, X, **QUIET)


def test_the_error_without_scipy_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match=r"pip install 'keras_tfopt\[solvers\]'"):
        minimize(linear(), X, Y, **QUIET)
