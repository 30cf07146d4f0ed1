"""Restore a model and its optimizer from a checkpoint of `tf.train.Saver`."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.engine import prepare, set_steps, variables_of
from keras_tfopt.legacy.checkpoints.files import CheckpointFile
from keras_tfopt.legacy.checkpoints.models import sync_models
from keras_tfopt.legacy.checkpoints.names import Stored
from keras_tfopt.legacy.checkpoints.planning import Move, Plan, plans_for
from keras_tfopt.legacy.checkpoints.report import CheckpointMismatch, Report
from keras_tfopt.legacy.checkpoints.training_state import derive, state_at

# Smaller checkpoints are read too fast for a progress bar.
_WORTH_A_BAR = 2**27


def load_checkpoint(
    prefix: Any,
    model: Any,
    optimizer: Any,
    name_map: Any = None,
    strict: bool = True,
    *,
    swapped: bool = False,
    progress: bool | None = None,
) -> Report:
    """Restore a model and its optimizer from a checkpoint of TensorFlow 1, to continue training.

    ```python
    model.compile(optimizer=keras_tfopt.LazyAdam(0.001), loss="mse")
    report = keras_tfopt.legacy.load_checkpoint("run/model.ckpt-5000", model, model.optimizer)
    model.fit(x, y)
    ```

    Variables are found by their paths, in several spellings: unchanged, without the name of the
    model, with layers numbered as if the model were the only one of the process, and in a scope
    around all variables of the checkpoint. The spelling that finds most variables is used for all.
    State is found with its variable, by the names that the originals give it
    (`dense/kernel/Adam_1`). Shapes must agree. Layouts are not changed, though some differ: the
    gates of a recurrent layer have another order in `tf.nn.rnn_cell` than in Keras.

    Of the optimizer, these are restored:

    - slots;
    - averages, `<variable>/ExponentialMovingAverage`, for a `MovingAverage` or `use_ema`;
    - the number of steps, from the powers of its decay rates if it has any, else from
      `global_step`, which also goes into a variable that the optimizer was given as `global_step`.
      The report has all counts that differ;
    - the window of GGT, in the order of its variables here.

    Such checkpoints have no learning rate.

    Optimizers of one kind that share a checkpoint have numbered powers: `beta1_power`,
    `beta1_power_1`. The owner of a power follows from the `.meta` file, which names the variable
    that the power was placed with; from a scope that holds the power and the variables; or from
    decay rates. If all powers give the same number of steps, the owner does not matter. Otherwise a
    ValueError names the powers.

    Everything is read once and compared before the first assignment, checksums included. Only one
    tensor of the file is in memory at a time. Nothing in the file is executed. TensorFlow reads it,
    on any backend of Keras.

    Args:
        prefix: Path of the checkpoint, without `.index`; or a folder, for the latest one in it.
        model: A `keras.Model` or layer that is built, or a list of variables. Or a list of models,
            each of which has its variables in a scope of its name: `generator/dense/kernel`.
        optimizer: An optimizer of keras_tfopt or of keras_tfopt.legacy, with wrappers or without,
            built or not, that corresponds to the one that wrote the checkpoint. None restores the
            model only. For several that share the checkpoint, such as the two of a GAN: a list of
            optimizers that are built, each for its own variables.
        name_map: Names that differ, from those in the checkpoint to paths of variables: a
            dictionary of names or scopes; a list of pairs of a regular expression and a
            replacement, applied in turn as `re.sub` does; or a function. State follows its
            variable. A name that is mapped to None is left out.
        strict: Whether to raise an error if anything is missing, is not used, or does not fit.
            Otherwise what fits is restored.
        swapped: Whether `swapping_saver()` wrote it, so that averages have the names of the
            variables. The file does not say.
        progress: Whether to show a progress bar. None shows one for large checkpoints.

    Returns:
        The report on each tensor and variable.

    Raises:
        ImportError: without TensorFlow.
        FileNotFoundError: if there is no checkpoint there.
        CheckpointMismatch: a ValueError with the `report`, if the checkpoint does not fit.
        ValueError: if the file is truncated or damaged, an argument does not fit it, or it is not
            clear which of several optimizers wrote what.
        TypeError: for an optimizer that has no original in TensorFlow 1.

    In all these cases nothing has been changed.
    """
    check_bool("strict", strict)
    check_bool("swapped", swapped)
    file = CheckpointFile(prefix)
    plans, report = plans_for(file, model, optimizer, name_map, swapped)
    if strict and report.problems:
        raise CheckpointMismatch(report)

    moves = [move for plan in plans for move in plan.moves]
    bar = _Bar(moves, progress)
    for move in moves:
        _read(file, move.tensor)
        bar.add(move)
    sync_models(model)
    for plan in plans:
        _fill(file, plan, bar)
    return report


def _fill(file: CheckpointFile, plan: Plan, bar: _Bar) -> None:
    """Build the optimizer if needed, and assign the values of a plan to it and to variables."""
    optimizer = plan.optimizer
    new = optimizer is not None and not optimizer.built
    if optimizer is not None:
        prepare(optimizer, plan.trained)
        plan.trained = variables_of(optimizer)
    for move in plan.moves:
        value = _read(file, move.tensor)
        _assign(_target(move, optimizer), value if move.change is None else move.change(value))
        bar.add(move)
    if optimizer is None:
        return
    for variable, slot in plan.begin if new else ():
        _assign(state_at(optimizer, variable, slot), variable)
    derive(optimizer)
    if plan.iterations is not None:
        set_steps(optimizer, plan.iterations)
    if plan.counter is not None:
        counter, step = plan.counter
        counter.assign(step)


def _read(file: CheckpointFile, tensor: Stored) -> np.ndarray:
    parts = [file.read(name) for name in tensor.names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=tensor.axis)


def _target(move: Move, optimizer: Any) -> Any:
    return move.variable if move.slot is None else state_at(optimizer, move.variable, move.slot)


def _assign(variable: Any, value: Any) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.name != str(variable.dtype):
        value = ops.cast(ops.convert_to_tensor(value), variable.dtype)
    variable.assign(value)


class _Bar:
    """A progress bar over the bytes, which are read twice: to compare and to assign."""

    def __init__(self, moves: list[Move], progress: bool | None):
        if progress is not None:
            check_bool("progress", progress)
        total = 2 * sum(_megabytes(move) for move in moves)
        show = 2 * _WORTH_A_BAR / 2**20 <= total if progress is None else progress
        self.bar = keras.utils.Progbar(round(total) or 1, unit_name="MB") if show else None
        self.done = 0.0

    def add(self, move: Move) -> None:
        self.done += _megabytes(move)
        if self.bar is not None:
            self.bar.update(min(round(self.done), self.bar.target))


def _megabytes(move: Move) -> float:
    itemsize = np.dtype(move.tensor.dtype).itemsize  # of bfloat16 too, which TensorFlow has added
    return itemsize * math.prod(move.tensor.shape) / 2**20
