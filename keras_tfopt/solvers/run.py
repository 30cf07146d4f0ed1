"""The function `minimize`: a solver of SciPy trains a model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.engine import dtype_of
from keras_tfopt.engine.state.state import widest
from keras_tfopt.solvers.data import Batches
from keras_tfopt.solvers.flat import Flattening
from keras_tfopt.solvers.methods import (
    Method,
    check_method,
    check_options,
    method_of,
    scipy_optimize,
)
from keras_tfopt.solvers.objective import Objective, check_loss
from keras_tfopt.solvers.progress import Run, Stopped
from keras_tfopt.solvers.variables import bounds_of, constraints_of, non_negative


def minimize(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: str = "L-BFGS-B",
    loss: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    batch_size: int | None = None,
    dtype: str = "float64",
    tol: float | None = None,
    options: Any = None,
    callbacks: Any = None,
    initial_epoch: int = 0,
    verbose: Any = "auto",
) -> keras.callbacks.History:
    """Train a model on all of its data at once, with a solver of `scipy.optimize.minimize`.

    The trainable variables are one vector for SciPy. The backend computes the loss and its
    gradient, compiled once. The loss is that of `fit` and `evaluate`: a mean over all samples, plus
    the penalties of layers. Layers run as in inference, so dropout is off and normalization layers
    use their running statistics, which stay as they are.

    Each iteration of the solver is an epoch for callbacks: they see the weights of the iterate, and
    the logs `loss` and `gradient_norm`, the largest magnitude in the gradient. `EarlyStopping`,
    `ModelCheckpoint`, `TensorBoard` and `BackupAndRestore` work as in `fit`.

    At the end the model has the weights of the best iterate, also where the run is interrupted by
    Ctrl-C or by an error of a callback. With constraints these are the weights of the last iterate,
    since a lower loss may be one that breaks them.

    Call `minimize` again to continue. The solver then starts from the weights, but without what it
    learned about the curvature.

    Args:
        model: A `keras.Model`. The arithmetic is in the dtypes of its layers.
        x: Arrays, in any structure that the model takes, or a dataset that can be read again:
            `keras.utils.PyDataset`, `tf.data.Dataset`, a `DataLoader` of PyTorch.
        y: Targets, None where `x` is a dataset.
        sample_weight: Weights of samples, or None.
        method: Name of a method of `scipy.optimize.minimize`. Those without gradients take up to
            1,000 parameters, those with a square matrix up to 10,000. Second derivatives come from
            the backend. Defaults to "L-BFGS-B".
        loss: A loss as for `compile`: the name of one, a `keras.losses.Loss` or a function of
            `(y_true, y_pred)`. Defaults to None: what the model's `compute_loss` returns.
        bounds: Dictionary from regular expressions for paths of variables, or functions of a
            variable, to pairs `(low, high)` of numbers, None, or arrays that can be broadcast to
            the variable's shape. The constraint `NonNeg` of a layer is a bound, too; other
            constraints of layers are refused.
        constraints: List of dictionaries with `type`, "eq" or "ineq", and `fun`, a function of the
            model that returns a scalar tensor, to be 0 or at least 0.
        batch_size: Integer >= 1: how many samples are on the device at once; gradients of batches
            are summed. Defaults to None: all samples, or the batches of the dataset.
        dtype: "float64" or "float32": in what gradients come to the host, are summed over batches
            and given to SciPy, which itself computes in float64. Defaults to "float64".
        tol: Tolerance of SciPy, or None.
        options: Dictionary of options of the method, as `maxiter`, which is `maxfun` for "TNC".
        callbacks: List of `keras.callbacks.Callback`, or None.
        initial_epoch: Integer >= 0: the number of the first iteration, for callbacks; `maxiter`
            counts from 0. Defaults to 0.
        verbose: 0 is silent, 1 a progress bar, 2 a line for each iteration. "auto" is 1.

    Returns:
        A `keras.callbacks.History`, as from `fit`. Its `result` is SciPy's `OptimizeResult`, whose
        `message` says why the run stopped. `result.x` are the weights that the model has.

    Raises:
        ImportError: if SciPy is not installed (the extra `solvers`).
        TypeError: if an argument is of a wrong type.
        ValueError: if an argument is out of its range, or the method cannot do what is asked for:
            always before the first evaluation of the loss.

    A loss or gradient that is not finite ends the run: `result.success` is False.

    In float32 a loss has seven digits, and line searches end where it changes by less. With layers
    of float64 the solvers go further. On JAX and PyTorch, many operations of Keras round float64 to
    float32, such as `mean` and `tanh`; on TensorFlow none does.

    Example:

    >>> history = keras_tfopt.solvers.minimize(model, x, y, loss="mse", options={"maxiter": 200})
    >>> history.result.message

    Differences: `scipy.optimize.minimize` clips weights to bounds at the start, and so does this.
    Options that a method does not have are errors here, warnings there.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"Argument `dtype` must be 'float32' or 'float64'. Received: {dtype!r}")
    if verbose not in ("auto", 0, 1, 2):
        raise ValueError(f"Argument `verbose` must be 'auto', 0, 1 or 2. Received: {verbose!r}")
    initial_epoch = check_integer("initial_epoch", initial_epoch, 0)
    if tol is not None:
        tol = check_number("tol", tol, 0)
    _check_callbacks(callbacks)
    optimize = scipy_optimize()
    known = method_of(method)
    options = check_options(known, options)
    batches = _batches(model, x, y, sample_weight, batch_size)
    check_loss(model, loss, batches)
    if not model.built:  # its variables say in what dtype to read the data
        model(batches.first()[0])
        batches = _batches(model, x, y, sample_weight, batch_size)
    if not model.trainable_variables:
        raise ValueError(f"Argument `model` must have trainable variables. Received: {model!r}")
    flattening = Flattening(model.trainable_variables)
    of_layers = non_negative(flattening)
    check_method(known, flattening.size, bounds or of_layers, constraints)
    limits = bounds_of(bounds, of_layers, flattening)
    given = constraints_of(constraints, model, flattening)
    objective = Objective(model, loss, batches, flattening, dtype)
    run = Run(
        objective,
        flattening,
        model,
        callbacks,
        1 if verbose == "auto" else verbose,
        gradient=known.gradient,
        keep_last=bool(given),
        iterations=options.get("maxiter"),
    )
    with run.begun(initial_epoch):
        arguments = {**_derivatives(known, objective), "constraints": given, "tol": tol}
        if limits is not None:
            arguments["bounds"] = optimize.Bounds(*limits)
        left = dict(options)
        if "maxiter" in left:
            left["maxiter"] = max(left["maxiter"] - run.first, 0)
        result = _solve(run, optimize, known, flattening.read(dtype), left, arguments)
    run.history.result = result
    return run.history


def _batches(model: Any, x: Any, y: Any, sample_weight: Any, batch_size: int | None) -> Batches:
    dtypes = [dtype_of(variable) for variable in model.trainable_variables]
    return Batches(x, y, sample_weight, batch_size, widest(dtypes))


def _check_callbacks(callbacks: Any) -> None:
    for one in keras.tree.flatten(callbacks):
        if one is not None and not isinstance(one, keras.callbacks.Callback):
            raise TypeError(
                "Argument `callbacks` must be None or a list of keras.callbacks.Callback. "
                f"Received: {one!r}"
            )


def _derivatives(method: Method, objective: Objective) -> dict[str, Any]:
    found: dict[str, Any] = {"jac": True} if method.gradient else {}
    if method.hessian == "product":
        found["hessp"] = objective.hessian_product
    if method.hessian == "matrix":
        found["hess"] = objective.hessian
    return found


def _solve(
    run: Run,
    optimize: Any,
    method: Method,
    start: np.ndarray,
    options: dict[str, Any],
    arguments: dict[str, Any],
) -> Any:
    """Return SciPy's result, with the weights that the model is to have."""
    if options.get("maxiter") == 0:
        message = "The number of iterations is reached"
        return optimize.OptimizeResult(x=start, message=message, success=False, nit=0, nfev=0)
    try:
        result = optimize.minimize(
            run.evaluate,
            start,
            method=method.name,
            callback=run.iterate,
            options=options,
            **arguments,
        )
        run.consider(np.asarray(result.x, start.dtype), float(result.fun))
    except Stopped as reason:
        result = optimize.OptimizeResult(
            message=str(reason),
            success=False,
            status=-1,
            nit=run.epoch - run.first,
            nfev=run.evaluations,
        )
    result.x, result.fun = np.asarray(run.best, start.dtype), run.best_loss
    return result
