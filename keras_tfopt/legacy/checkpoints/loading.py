"""Going on from a checkpoint of `tf.train.Saver`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import (
    CheckpointFile,
    Content,
    derive,
    prepare,
    set_steps,
    state_at,
    sync,
    variables_of,
)
from keras_tfopt.legacy.checkpoints.names import Stored
from keras_tfopt.legacy.checkpoints.planning import Move, Plan, plans_for
from keras_tfopt.legacy.checkpoints.report import CheckpointMismatch, Report

# Checkpoints below this size are read before a bar could be looked at.
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
    """Fills a model and its optimizer from a checkpoint of TensorFlow 1, to go on training.

    ```python
    model.compile(optimizer=keras_tfopt.LazyAdam(0.001), loss="mse")
    report = keras_tfopt.legacy.load_checkpoint("run/model.ckpt-5000", model, model.optimizer)
    model.fit(x, y)
    ```

    Variables go by their paths: `dense/kernel` is looked for as it is, without the name of the
    model, with layers numbered as if the model were the only one of the process, and in a scope
    that the checkpoint has around all of them; the spelling that finds most variables holds for
    all. State goes with its variable, by the names that the originals give it
    (`dense/kernel/Adam_1`). Shapes must agree. Layouts are taken as they are: the gates of a
    recurrent layer, for example, are arranged otherwise in `tf.nn.rnn_cell` than in Keras.

    What is restored of the optimizer: slots; averages, `<variable>/ExponentialMovingAverage`, where
    there is a `MovingAverage` or `use_ema`; the number of its steps, from the powers of its decay
    rates if it has any, else from `global_step`, which also goes into a variable that the optimizer
    was given as `global_step`; the window of GGT, in the order of its variables here. Counts that
    differ are all in the report. A learning rate is not part of such checkpoints.

    Optimizers of one kind that share a checkpoint have numbered powers: `beta1_power`,
    `beta1_power_1`. Which is whose is told by the `.meta` file, which has the variable that a power
    was placed with; by a scope that holds the power and the variables; by decay rates; and it does
    not matter where all powers tell the same number of steps. Otherwise a ValueError names them.

    Everything is compared and read once, checksums included, before the first assignment. Of the
    file, one tensor is in memory at a time. Nothing in it is executed. It is TensorFlow that reads
    it, on any backend of Keras.

    Args:
        prefix: Path of the checkpoint, without `.index`; or a folder, of which it is the latest.
        model: A `keras.Model` or layer that is built, or a list of variables. Or a list of models,
            of which each has its variables in a scope of its name: `generator/dense/kernel`.
        optimizer: An optimizer of keras_tfopt or of keras_tfopt.legacy, with wrappers or without,
            that stands for the one that wrote the checkpoint, built or not. None fills the model
            alone. Several that share the checkpoint, such as the two of a GAN, are a list of
            optimizers that are built, each for variables of its own.
        name_map: What is called otherwise here, from names in the checkpoint to paths of variables:
            a dictionary of names or scopes; a list of pairs of a regular expression and a
            replacement, applied in turn as `re.sub` does; or a function. State follows its
            variable. What becomes None is left out.
        strict: Whether to raise an error if anything is missing, is not used, or does not fit.
            Otherwise what fits is restored.
        swapped: Whether `swapping_saver()` has written it, so that averages stand under the names
            of the variables. Nothing in the file tells.
        progress: Whether to show a progress bar. None shows one for large checkpoints.

    Returns:
        The report, which says of each tensor and variable what became of it.

    Raises:
        ImportError: without TensorFlow.
        FileNotFoundError: if there is no checkpoint there.
        CheckpointMismatch: a ValueError with the `report`, if the checkpoint does not fit.
        ValueError: if the file is truncated or damaged, an argument does not fit it, or it is not
            clear which of several optimizers wrote what.
        TypeError: for an optimizer that stands for none of TensorFlow 1.

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
    for one in model if isinstance(model, (list, tuple)) else [model]:
        if isinstance(one, keras.Model):
            sync(one)
    for plan in plans:
        _fill(file, plan, bar)
    return report


def _fill(file: CheckpointFile, plan: Plan, bar: _Bar) -> None:
    new = plan.optimizer is not None and not plan.optimizer.built
    if plan.optimizer is not None:
        prepare(plan.optimizer, plan.trained)
        plan.trained = variables_of(plan.optimizer)
    for move in plan.moves:
        _assign(move, _read(file, move.tensor), plan.optimizer)
        bar.add(move)
    if plan.optimizer is not None:
        for variable, slot in plan.begin if new else ():
            state = state_at(plan.optimizer, variable, slot)
            state.assign(ops.cast(ops.convert_to_tensor(variable), state.dtype))
        derive(plan.optimizer)
        if plan.iterations is not None:
            set_steps(plan.optimizer, plan.iterations)
        if plan.counter is not None:
            counter, step = plan.counter
            counter.assign(step)


def _read(file: CheckpointFile, tensor: Stored) -> np.ndarray:
    if len(tensor.names) == 1:
        return file.read(tensor.names[0])
    return np.concatenate([file.read(name) for name in tensor.names], axis=tensor.axis)


def _assign(move: Move, value: np.ndarray, optimizer: Any) -> None:
    if move.change is not None:
        value = move.change(value)
    variable = move.variable
    if move.slot is not None:
        variable = state_at(optimizer, variable, move.slot)
    if value.dtype.name != str(variable.dtype):
        value = ops.cast(ops.convert_to_tensor(value), variable.dtype)
    variable.assign(value)


class _Bar:
    """A bar over the bytes that are read, once to compare and once to assign."""

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
    return Content(move.tensor.shape, move.tensor.dtype).bytes / 2**20
