"""From the environment of a process to its exchange."""

from __future__ import annotations

import os
from typing import Any

import keras

from keras_tfopt.execution.exchanges import environment
from keras_tfopt.execution.exchanges.exchange import Alone, Exchange

# Names of engines, and their backends.
ENGINES = {
    "torch": "torch",
    "jax": "jax",
    "jax_mesh": "jax",
    "tensorflow": "tensorflow",
    "mirrored": "tensorflow",
}


def make(engine: str | None, timeout: float) -> Exchange:
    """The exchange of an engine, or of the one for which the environment is made."""
    backend = keras.backend.backend()
    if engine is None:
        environment.check_meant_for(backend, os.environ)
    elif engine not in ENGINES:
        raise ValueError(
            "Argument `engine` must be None, a keras_tfopt.distributed.Exchange or one of "
            f"{list(ENGINES)}. Received: engine={engine!r}"
        )
    elif ENGINES[engine] != backend:
        raise ValueError(
            f"Engine {engine!r} is one of the backend {ENGINES[engine]}, but the backend of Keras "
            f"is {backend}. Received: engine={engine!r}"
        )
    made = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}[backend](engine, timeout)
    if engine is not None and isinstance(made, Alone):
        raise RuntimeError(
            f"There is no cluster for engine {engine!r}: its environment is not set. "
            f"{environment.START}"
        )
    return Alone() if made.size == 1 else made


def _torch(engine: str | None, timeout: float) -> Exchange:
    from torch import distributed

    size = environment.torch_size(os.environ)
    running = distributed.is_available() and distributed.is_initialized()
    if size < 2 and not running:
        return Alone()
    if not distributed.is_available():
        raise RuntimeError("This build of PyTorch has no torch.distributed")
    from keras_tfopt.execution.exchanges.torch import TorchDistributed

    return TorchDistributed(timeout)


def _tensorflow(engine: str | None, timeout: float) -> Exchange:
    import tensorflow as tf

    names, rank = environment.tensorflow_cluster(os.environ)
    inside = tf.distribute.has_strategy()
    if engine == "mirrored" or (engine is None and inside):
        if not inside:
            raise RuntimeError(
                "Engine 'mirrored' is the replicas of a strategy: call connect inside of "
                "`with strategy.scope():`"
            )
        if names:
            raise RuntimeError(
                "Replicas of a strategy cannot be workers beside those of TF_CONFIG: unset it, or "
                "call connect before the strategy is created and use none"
            )
        from keras_tfopt.execution.exchanges.mirrored import MirroredReplicas

        return MirroredReplicas(tf.distribute.get_strategy())
    if len(names) < 2:
        return Alone()
    from keras_tfopt.execution.exchanges.tensorflow import TensorFlowCollectives

    return TensorFlowCollectives(names, rank, timeout)


def _jax(engine: str | None, timeout: float) -> Exchange:
    import jax
    from jax._src import clusters

    cluster: dict[str, Any] = environment.jax_cluster(os.environ)
    kinds = clusters.ClusterEnv._cluster_types
    known = any(kind.is_env_present() for kind in kinds if not kind.opt_in_only_method)
    several = jax.distributed.is_initialized() or known or cluster.get("num_processes", 1) > 1
    processes = None
    if several:
        from keras_tfopt.execution.exchanges.jax_processes import JaxProcesses

        processes = JaxProcesses(timeout, **cluster)
    on_mesh = isinstance(keras.distribution.distribution(), keras.distribution.DataParallel)
    if engine == "jax_mesh" or (engine is None and on_mesh):
        from keras_tfopt.execution.exchanges.jax_mesh import JaxMesh

        return JaxMesh(processes)
    return Alone() if processes is None else processes
