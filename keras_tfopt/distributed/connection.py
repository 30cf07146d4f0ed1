"""The connection of this process to other workers."""

from __future__ import annotations

import keras

from keras_tfopt.execution.exchanges import Alone, Exchange, current, make, set_current
from keras_tfopt.execution.exchanges.workers import restore_replicas


def connect(timeout: float = 60.0, engine: str | Exchange | None = None) -> Exchange:
    """Connects this process to the other workers, which optimizers then find by themselves.

    Call it first of all, right after the imports: what connects processes has to be started before
    a backend computes anything. It has no effect in a process that no launcher has started, so
    that a script may be run by one worker as well.

    ```python
    import keras, keras_tfopt

    workers = keras_tfopt.distributed.connect()
    model = ...
    optimizer = keras_tfopt.distributed.ModelAverage(keras.optimizers.SGD(0.1), interval_steps=10)
    model.compile(optimizer, loss="mse")
    model.fit(x[workers.rank :: workers.size], y[workers.rank :: workers.size])
    ```

    ```sh
    python -m keras_tfopt.distributed.launch -n 2 script.py
    ```

    Engines, and by what they are found:

    - `"torch"`: processes on `torch.distributed` (gloo, NCCL), by `RANK`, `WORLD_SIZE`,
      `MASTER_ADDR` and `MASTER_PORT`, as torchrun sets them, or by a process group that is
      initialized already.
    - `"jax"`: processes on `jax.distributed`, by `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
      `JAX_PROCESS_ID`, by a cluster that JAX itself detects, such as Slurm's, or by one that is
      initialized already. If worker 0 dies, or another gives no sign of life for ten seconds more
      than `timeout`, JAX aborts the process, without an error.
    - `"jax_mesh"`: the devices of one JAX program, by a `keras.distribution.DataParallel` that is
      set. Asked for by name, it sets one of all devices. See `train_apart`.
    - `"tensorflow"`: processes on TensorFlow's collectives, by `TF_CONFIG`. A
      `MultiWorkerMirroredStrategy` starts them; do not enter its scope. Models need
      `jit_compile=False` where Keras would compile them with XLA.
    - `"mirrored"`: the replicas of a `MirroredStrategy`, by a call inside of its scope.

    Args:
        timeout: Seconds, more than 0, that this worker waits for others, at first and in each
            exchange. It has to be longer than workers may be apart, such as while one of them
            saves.
        engine: None: that of the environment. A name asks for an engine, with an error where it is
            not to be had. An `Exchange` of your own is taken as it is.

    Returns:
        The exchange, whose `rank` and `size` say which part of the data is this worker's. It is a
        context, too: `with connect() as workers:` disconnects at the end.

    Raises:
        ValueError: if the environment describes workers in part only, or the engine is not one of
            this backend.
        RuntimeError: if the environment is that of another backend, a backend runs already, or the
            others do not come within the time-out.
    """
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(
            f"Argument `timeout` must be a number of seconds, more than 0. Received: {timeout!r}"
        )
    if not isinstance(current(), Alone):
        raise RuntimeError(
            f"This process is connected already, as worker {current().rank} of {current().size}. "
            "Call keras_tfopt.distributed.disconnect() first"
        )
    return set_current(engine if isinstance(engine, Exchange) else make(engine, float(timeout)))


def disconnect() -> None:
    """Ends the connection; the end of the process does so as well.

    Worker 0 waits until the others have left, for the time-out of `connect` at most.
    """
    exchange = current()
    set_current(Alone())
    exchange.close()


def train_apart(model: keras.Model) -> keras.Model:
    """Makes each worker train a model of its own, where one program runs all of them.

    On a JAX mesh the training step is a program for all devices, which keeps the copies of the
    weights equal. After this call, it runs once on each device, on the part of the batch that is
    there, and the copies differ until an optimizer over workers makes them equal. Random layers
    get seeds that differ. Elsewhere workers train apart anyway, and nothing changes.

    `evaluate`, `predict` and `get_weights` see the first device: exchange before, by a number of
    steps that is a multiple of the period. A saved model has what the first device has; what the
    others have is saved with its optimizer. Where it is loaded for as many devices, all go on from
    where they were; for another number, all go on from the first.

    Args:
        model: The model, before `fit`, and after it has been loaded.

    Returns:
        The model.
    """
    current().train_apart(model)
    restore_replicas(model)
    return model
