"""Connect this process to other workers."""

from __future__ import annotations

import keras

from keras_tfopt.distributed.exchanges import Alone, Exchange, current, make, set_current
from keras_tfopt.distributed.exchanges.alike import compare, described, take_first
from keras_tfopt.distributed.exchanges.workers import restore_replicas


def connect(timeout: float = 60.0, engine: str | Exchange | None = None) -> Exchange:
    """Connect this process to the other workers. Optimizers then use the connection.

    Call it right after the imports: processes must be connected before a backend computes
    anything. Without a launcher it has no effect, so a single worker can run the same script.

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

    Engines, and what each needs:

    - `"torch"`: processes on `torch.distributed` (gloo, NCCL). Needs `RANK`, `WORLD_SIZE`,
      `MASTER_ADDR` and `MASTER_PORT`, as torchrun sets them, or a process group that is
      initialized already.
    - `"jax"`: processes on `jax.distributed`. Needs `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`
      and `JAX_PROCESS_ID`, or a cluster that JAX itself detects, such as Slurm's, or one that is
      initialized already. JAX aborts the process without an error if worker 0 dies, or if another
      worker gives no sign of life for ten seconds more than `timeout`.
    - `"jax_mesh"`: the devices of one JAX program. Needs a `keras.distribution.DataParallel`. If
      you request the engine by name, it makes one with all devices. See `train_apart`.
    - `"tensorflow"`: processes on TensorFlow's collectives. Needs `TF_CONFIG`. A
      `MultiWorkerMirroredStrategy` starts them; do not enter its scope. Models need
      `jit_compile=False` where Keras would compile them with XLA.
    - `"mirrored"`: the replicas of a `MirroredStrategy`. Call this function inside its scope.

    Args:
        timeout: Seconds, more than 0, that this worker waits for others, at first and in each
            exchange. It must be longer than the longest pause of a worker, such as while it saves.
        engine: None is the engine that the environment is set up for. A name requests an engine,
            and raises an error if it is not available. An `Exchange` of your own is used as given.

    Returns:
        The exchange, whose `rank` and `size` say which part of the data is this worker's. It is
        also a context manager: `with connect() as workers:` disconnects at the end.

    Raises:
        ValueError: if the environment describes workers only in part, or the engine belongs to
            another backend.
        RuntimeError: if the environment is set up for another backend, a backend has computed
            something already, or the other workers do not connect within the time-out.
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
    """End the connection. The end of the process does so, too.

    Worker 0 waits until the others have left, at most for the time-out of `connect`.
    """
    exchange = current()
    set_current(Alone())
    exchange.close()


def start_alike(model: keras.Model) -> keras.Model:
    """Give all workers the weights that the first one has, also those that are not trained.

    An optimizer over workers does so for the weights that it trains. Weights of frozen layers,
    means of `BatchNormalization` and what `adapt` has computed stay as they are on each worker,
    unless all call this function, or load them from one file, or set the same seed.

    Args:
        model: The model, built, the same on all workers.

    Returns:
        The model.

    Raises:
        ValueError: if the model is not built, or the workers have different ones.
    """
    if not model.built:
        raise ValueError(f"Argument `model` must be built. Received: {model!r}")
    exchange = current()
    if exchange.size > 1 and not exchange.one_process:
        compare(exchange, {"variables": described(model.weights, "start_alike")})
        take_first(exchange, model.weights)
    return model


def train_apart(model: keras.Model) -> keras.Model:
    """Make each worker train its own copy of the model where one program runs all of them.

    On a JAX mesh the training step is one program for all devices, which keeps the copies of the
    weights equal. After this call, it runs once on each device, with that device's part of the
    batch. The copies then differ until an optimizer over workers makes them equal. Random layers
    get different seeds. Metrics count the batches of all devices, if they are sums over batches, as
    those of Keras are. On other engines workers train apart anyway, and nothing changes.

    `evaluate`, `predict` and `get_weights` use the first device only, so call them after a multiple
    of the period. A saved model has the weights of the first device, and its optimizer has those of
    the others. If it is loaded for the same number of devices, each continues with its own weights;
    otherwise all continue with those of the first.

    Args:
        model: The model, before `fit`, and after it has been loaded.

    Returns:
        The model.
    """
    current().train_apart(model)
    restore_replicas(model)
    return model
