"""The run of a solver as Keras callbacks see it: each iteration is an epoch of one step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tfopt.engine.keras_private import initial_epoch, set_initial_epoch
from keras_tfopt.solvers.flat import Flattening
from keras_tfopt.solvers.objective import Objective


class Stopped(Exception):
    """Ends the run; the message says why."""


@contextlib.contextmanager
def _with_optimizer(model: Any) -> Iterator[None]:
    """Let a model that is not compiled have no optimizer, where callbacks ask for it."""
    missing = not hasattr(model, "optimizer")
    if missing:
        model.optimizer = None
    try:
        yield
    finally:
        if missing:
            del model.optimizer


class Run:
    """Evaluate the loss for a solver, and keep its best iterate.

    Args:
        objective: The loss.
        flattening: The variables of the model.
        model: The model, which has the weights of the last iterate when callbacks are called.
        callbacks: List of callbacks, or None.
        verbose: 0, 1 or 2.
        gradient: Whether the solver takes gradients.
        keep_last: Whether the last iterate counts as the best, which it does with constraints.
        iterations: The largest number of iterations, or None.
    """

    def __init__(
        self,
        objective: Objective,
        flattening: Flattening,
        model: Any,
        callbacks: Any,
        verbose: int,
        gradient: bool,
        keep_last: bool,
        iterations: int | None,
    ):
        self._objective, self._flattening, self._model = objective, flattening, model
        self._gradient, self._keep_last, self._verbose = gradient, keep_last, verbose
        self._iterations = iterations
        self.callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, model=model, epochs=iterations, steps=1, verbose=0
        )
        self.history = next(
            one for one in self.callbacks.callbacks if isinstance(one, keras.callbacks.History)
        )
        self._progress: Any = None
        self._logs: dict[str, float] = {}
        self._is_open = False  # whether callbacks know that an iteration has begun
        self._last: tuple[np.ndarray, float, np.ndarray | None] | None = None
        self.evaluations = 0
        self.best: np.ndarray | None = None
        self.best_loss = np.inf
        self.epoch = self.first = 0

    @contextlib.contextmanager
    def begun(self, first: int) -> Iterator[None]:
        """Return the context of a run, which calls `on_train_begin` and `on_train_end`.

        A callback may restore weights and the number of the epoch at the beginning. At the end the
        model has the best weights, even after an error. After an error no callback is called, as in
        `fit`.
        """
        with _with_optimizer(self._model):
            self._model.stop_training = False
            set_initial_epoch(self._model, None)
            self.callbacks.on_train_begin()
            self.epoch = self.first = initial_epoch(self._model) or first
            set_initial_epoch(self._model, None)
            self._progress = keras.utils.Progbar(
                self._iterations,
                verbose=int(self._verbose == 1),
                stateful_metrics=["loss", "gradient_norm"],
                unit_name="iteration",
            )
            try:
                yield
                if self.epoch == self.first and self.best is not None and self._last is not None:
                    # There was no iteration, as where the start is a solution.
                    is_last = np.array_equal(self._last[0], self.best)
                    self._flattening.assign(self.best)
                    self._end(self.best_loss, self._last[2] if is_last else None)
            finally:
                if self.best is not None:
                    self._flattening.assign(self.best)
            if self.epoch > self.first:
                self._progress.update(self.epoch, list(self._logs.items()), finalize=True)
            self.callbacks.on_train_end(dict(self._logs))

    def evaluate(self, x: np.ndarray) -> Any:
        """Return the loss, and its gradient as well if the solver takes gradients.

        Raises:
            Stopped: if the loss is NaN or, with gradients, anything is not finite.
        """
        loss, gradient = self._evaluated(x)
        return loss if gradient is None else (loss, gradient)

    def _evaluated(self, x: np.ndarray) -> tuple[float, np.ndarray | None]:
        if not self._is_open:
            self.callbacks.on_epoch_begin(self.epoch)
            self.callbacks.on_train_batch_begin(0)
            self._is_open = True
        gradient = None
        if self._gradient:
            loss, gradient = self._objective.value_and_gradient(x)
        else:
            loss = self._objective.value(x)
        self.evaluations += 1
        self._last = x.copy(), loss, gradient
        if self.best is None:
            self.best, self.best_loss = x.copy(), loss
        if np.isnan(loss) or (gradient is not None and not np.isfinite(loss)):
            raise Stopped(f"The loss is {loss} in evaluation {self.evaluations}")
        if gradient is not None and not np.all(np.isfinite(gradient)):
            raise Stopped(f"The gradient is not finite in evaluation {self.evaluations}")
        return loss, gradient

    def iterate(self, x: np.ndarray, *_: Any) -> None:
        """End an iteration, and call the callbacks."""
        loss, gradient = self._at(x)
        self.consider(x, loss)
        self._flattening.assign(x)
        self._end(loss, gradient)
        if self._model.stop_training:
            raise Stopped("A callback has stopped the run")

    def _end(self, loss: float, gradient: np.ndarray | None) -> None:
        self._logs = {"loss": loss}
        if gradient is not None:
            self._logs["gradient_norm"] = float(np.max(np.abs(gradient)))
        self.callbacks.on_train_batch_end(0, dict(self._logs))
        self.callbacks.on_epoch_end(self.epoch, dict(self._logs))
        self._is_open = False
        self.epoch += 1
        self._progress.update(self.epoch, list(self._logs.items()), finalize=False)
        if self._verbose == 2:
            shown = " - ".join(f"{name}: {value:.6g}" for name, value in self._logs.items())
            print(f"Iteration {self.epoch} - {shown}", flush=True)

    def consider(self, x: np.ndarray, loss: float) -> None:
        """Keep a point if it is the best so far."""
        if self._keep_last or self.best is None or not self.best_loss <= loss:
            self.best, self.best_loss = x.copy(), loss

    def _at(self, x: np.ndarray) -> tuple[float, np.ndarray | None]:
        """Return the loss and its gradient at an iterate, usually from the last evaluation."""
        if self._last is None or not np.array_equal(self._last[0], x):
            self._evaluated(x)
        assert self._last is not None
        return self._last[1:]
