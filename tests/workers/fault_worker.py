"""A worker of test_faults.py, in which a fault happens.

    python -m tests.workers.fault_worker FAULT FOLDER

It prints `fault at SECONDS`, by time.time(), when the fault happens.
"""

import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np

import keras_tfopt
import keras_tfopt.distributed as distributed
from keras_tfopt import engine
from tests.helpers.methods import METHODS, momentum
from tests.workers.exchange_worker import Run

TIMEOUT = 6
STALL = 2 * TIMEOUT
AT = 4  # the fault happens before this batch


class Fault(keras.callbacks.Callback):
    def __init__(self, kind, epoch=0):
        super().__init__()
        self.kind, self.epoch, self.now = kind, epoch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.now, batch) != (self.epoch, AT):
            return
        print(f"fault at {time.time()}", flush=True)
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "raises":
            raise OSError("the disk is full")
        if self.kind == "stalls":
            time.sleep(STALL)


def main(fault, folder):
    rank = distributed.connect(timeout=TIMEOUT).rank
    run = Run((None, [rank]))
    model = run.model(lambda: METHODS["ModelAverage"](momentum()))
    callbacks, how = [], {}
    if fault == "unequal" and rank == 1:
        how = {"steps": slice(0, 2)}  # too few for an exchange; the other worker makes two
    if fault in ("raises", "stalls") and rank == 1:
        callbacks = [Fault(fault)]
    if fault == "first_killed" and rank == 0:
        callbacks = [Fault("killed")]
    if fault.startswith("backup"):
        how = {"epochs": 2}
        backup = keras.callbacks.BackupAndRestore(folder / str(rank), delete_checkpoint=False)
        callbacks = [backup]
        if fault == "backup_killed" and rank == 1:
            callbacks.append(Fault("killed", epoch=1))
        if fault == "backup_lost":
            run.fit(model, callbacks=callbacks, epochs=1)
            model = run.model(lambda: METHODS["ModelAverage"](momentum()))
            if rank == 1:
                callbacks = [keras.callbacks.BackupAndRestore(folder / "lost")]
    if fault == "only_one_saves":
        model.compile(distributed.ShardedState(keras_tfopt.Adam()), "mse")
        run.fit(model)
        if rank == 0:
            model.save(folder / "model.keras")
        return
    if fault == "only_one_keeps_checkpoints":
        model.compile(distributed.ShardedState(keras_tfopt.Adam()), "mse")
        callbacks = [keras.callbacks.ModelCheckpoint(folder / "model.keras")] if rank == 0 else []
        how = {"epochs": 2}
    (weights,) = run.fit(model, callbacks=callbacks, **how)["weights"]
    np.save(folder / f"weights-{rank}.npy", weights)
    print(f"epochs made: {len(model.history.epoch)}", flush=True)


if __name__ == "__main__":
    try:
        with engine.plain():  # to compile takes longer than all else
            main(sys.argv[1], pathlib.Path(sys.argv[2]))
    except Exception:
        print(f"failed at {time.time()}", flush=True)
        raise
