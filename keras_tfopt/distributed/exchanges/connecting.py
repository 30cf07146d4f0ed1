"""Make the exchange of a process from its environment."""

from __future__ import annotations

import os

import keras

from keras_tfopt.distributed import environment
from keras_tfopt.distributed.exchanges.exchange import Alone, Exchange

# Engines, and the backend of each.
ENGINES = {
    "torch": "torch",
    "jax": "jax",
    "jax_mesh": "jax",
    "tensorflow": "tensorflow",
    "mirrored": "tensorflow",
}


def make(engine: str | None, timeout: float) -> Exchange:
    """Return the exchange of an engine; None is the engine that the environment describes."""
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
    if made is None and engine is not None:
        raise RuntimeError(
            f"There is no cluster for engine {engine!r}: its environment is not set. "
            f"{environment.START}"
        )
    return Alone() if made is None or made.size == 1 else made


def _torch(engine: str | None, timeout: float) -> Exchange | None:
    from torch import distributed

    size = environment.torch_size(os.environ)
    if not distributed.is_available():
        if size < 2:
            return None
        raise RuntimeError("This build of PyTorch has no torch.distributed")
    if size < 2 and not distributed.is_initialized():
        return None
    from keras_tfopt.distributed.exchanges.torch import TorchDistributed

    return TorchDistributed(timeout)


def _tensorflow(engine: str | None, timeout: float) -> Exchange | None:
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
                "Replicas of a strategy cannot be workers together with those of TF_CONFIG: "
                "unset it, or call connect before the strategy is created and use none"
            )
        from keras_tfopt.distributed.exchanges.mirrored import MirroredReplicas

        return MirroredReplicas(tf.distribute.get_strategy())
    if len(names) < 2:
        return None
    from keras_tfopt.distributed.exchanges.tensorflow import TensorFlowCollectives

    return TensorFlowCollectives(names, rank, timeout)


def _jax(engine: str | None, timeout: float) -> Exchange | None:
    import jax
    from jax._src import clusters

    cluster = environment.jax_cluster(os.environ)
    kinds = clusters.ClusterEnv._cluster_types
    known = any(kind.is_env_present() for kind in kinds if not kind.opt_in_only_method)
    processes = None
    if known or jax.distributed.is_initialized() or cluster.get("num_processes", 1) > 1:
        from keras_tfopt.distributed.exchanges.jax_processes import JaxProcesses

        processes = JaxProcesses(timeout, **cluster)
    on_mesh = isinstance(keras.distribution.distribution(), keras.distribution.DataParallel)
    if engine == "jax_mesh" or (engine is None and on_mesh):
        from keras_tfopt.distributed.exchanges.jax_mesh import JaxMesh

        return JaxMesh(processes)
    return processes
