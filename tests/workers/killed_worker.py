"""The program that test_interruptions.py kills: a training that writes backups of itself.

    KERAS_BACKEND=jax python -m tests.workers.killed_worker FOLDER NAME [POINT]

NAME is an optimizer of state_worker.py. A process that is not killed at POINT writes the weights of
the model and of the optimizer to `FOLDER/end.npz`.
"""

import os
import pathlib
import signal
import sys

import keras
import numpy as np

from keras_tfopt.engine import compile_in_background, parts
from tests.workers.state_worker import MAKERS, everything, make_model

EPOCHS, BATCHES = 4, 3
KILLED_IN = 2  # the epoch, from zero
rng = np.random.default_rng(7)
IDS = rng.integers(0, 5, size=(4 * BATCHES, 4))
TARGETS = rng.normal(size=(4 * BATCHES, 2)).astype("float32")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Ending(keras.callbacks.Callback):
    """A callback that calls `end` at some point."""

    def __init__(self, end):
        super().__init__()
        self.end = end


class MidEpoch(Ending):
    """End after the weights have moved since the last backup."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (KILLED_IN, BATCHES - 2):
            self.end()


class WhileSaving(Ending):
    """End while the optimizer's state is written."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == KILLED_IN:
            *_, optimizer = parts(self.model.optimizer)  # the innermost has enough state
            save = optimizer.save_own_variables
            optimizer.save_own_variables = lambda store: save(Deadly(store, self.end))


class Deadly:
    """A store that calls `end` at its third entry."""

    def __init__(self, store, end):
        self.store, self.end, self.left = store, end, 2

    def __setitem__(self, key, value):
        if not self.left:
            self.end()
        self.store[key] = value
        self.left -= 1


POINTS = {"mid_epoch": MidEpoch, "while_saving": WhileSaving}


def run(folder, make, point=None, end=die):
    """Train from the last backup to the end or to `point`; return the first epoch and weights."""
    model = make_model(make())
    backup = keras.callbacks.BackupAndRestore(
        folder / "backup", double_checkpoint=True, delete_checkpoint=False
    )
    callbacks = [POINTS[point](end), backup] if point else [backup]
    first = []
    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, _: first.append(e)))
    model.fit(
        IDS, TARGETS, batch_size=4, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks
    )
    return first[0], everything(model)


def main(folder, name, point=None):
    compile_in_background(False)  # code may round otherwise before and after it is compiled
    first, arrays = run(folder, MAKERS[name], point)
    np.savez(folder / "end.npz", np.array(first), *arrays)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
