"""A worker of test_faults.py, to which something happens.

    python -m tests.fault_worker FAULT FOLDER

It prints `fault at SECONDS`, on the clock of time.time(), when it is its turn.
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
from tests import averaging

BACKEND = keras.backend.backend()
TIMEOUT = 6
STALL = 2 * TIMEOUT
AT = 4  # the batch before which it happens


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


def make_model():
    kernel = keras.initializers.Constant(averaging.START)
    model = keras.Sequential(
        [keras.Input((averaging.INPUTS,)), keras.layers.Dense(1, kernel_initializer=kernel)]
    )
    inner = keras_tfopt.Momentum(averaging.RATE, averaging.MOMENTUM)
    optimizer = distributed.ModelAverage(inner, averaging.PERIOD)
    compiled = {"jit_compile": False} if BACKEND == "tensorflow" else {}
    model.compile(optimizer, "mse", **compiled)
    return model


def main(fault, folder):
    rank = distributed.connect(timeout=TIMEOUT).rank
    x, y = averaging.batches(rank)
    x, y = x.reshape(-1, averaging.INPUTS), y.reshape(-1, 1)
    callbacks, epochs, model = [], 1, make_model()
    if fault == "unequal" and rank == 1:
        keep = averaging.BATCH * 2  # so that this one makes no exchange, the other two
        x, y = x[:keep], y[:keep]
    if fault in ("killed", "raises", "stalls") and rank == 1:
        callbacks = [Fault(fault)]
    if fault == "first_killed" and rank == 0:
        callbacks = [Fault("killed")]
    if fault.startswith("backup"):
        epochs = 2
        backup = keras.callbacks.BackupAndRestore(folder / str(rank), delete_checkpoint=False)
        callbacks = [backup]
        if fault == "backup_killed" and rank == 1:
            callbacks.append(Fault("killed", epoch=1))
    model.fit(
        x,
        y,
        batch_size=averaging.BATCH,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        callbacks=callbacks,
    )
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    np.save(folder / f"weights-{rank}.npy", weights)
    print(f"epochs made: {len(model.history.epoch)}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], pathlib.Path(sys.argv[2]))
    except Exception:
        print(f"failed at {time.time()}", flush=True)
        raise
