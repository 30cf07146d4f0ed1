"""Workers on jax.distributed, one process each."""

from __future__ import annotations

import inspect
import math
import os
import sys
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # its client, which keeps the notes, has no public name
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.processes import Processes

AXIS = "workers"
# Seconds by which JAX waits longer for signs of life than an exchange does. So the exchange raises
# its error before JAX aborts the process.
SPARE = 10
KNOWN = inspect.signature(jax.distributed.initialize).parameters  # depend on the version
HEARTBEAT = "heartbeat_timeout_seconds"
USUAL_SILENCE = 100  # seconds, where there is no such argument
# Compilers of older versions abort the process for a flag that they do not know.
HAS_FLAG = jax.__version_info__ >= (0, 8, 2)


class JaxProcesses(Processes):
    """The workers of a JAX cluster, each with its own program.

    A compiled step calls the host, which sums on the CPUs of all workers. The step itself may run
    on another device.

    Args:
        timeout: Seconds to wait for others.
        **cluster: Arguments of `jax.distributed.initialize`.
    """

    def __init__(self, timeout: float, **cluster: Any):
        self._owns_cluster = not jax.distributed.is_initialized()
        if self._owns_cluster:
            start_cluster(timeout, cluster)
        super().__init__(jax.process_index(), jax.process_count(), timeout)
        self.ending = (
            ". JAX itself is going to abort this process if the others do not end within "
            f"{silence(timeout)} s"
        )
        self._client = distributed.global_state.client
        firsts = {d.process_index: d for d in reversed(jax.devices("cpu"))}
        self._device = firsts[self.rank]
        mesh = Mesh(np.array([firsts[rank] for rank in range(self.size)]), (AXIS,))
        self._apart = NamedSharding(mesh, PartitionSpec(AXIS))

        def total(part: Any) -> Any:
            return jax.lax.psum(part[0], AXIS)

        self._total = jax.jit(
            jax.shard_map(total, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec())
        )

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        return flat.summed(self._sum, tensors)

    def _sum(self, tensor: Any) -> Any:
        if not isinstance(tensor, jax.core.Tracer):
            return jax.numpy.asarray(self._sum_on_host(tensor))
        like = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
        # Ordered, so that several exchanges of a step are in the same order on all workers.
        return io_callback(self._sum_on_host, like, tensor, ordered=True)

    def check_steps(self, own: Any, total: Any) -> None:
        if isinstance(total, jax.core.Tracer):
            io_callback(self._compare_steps, None, own, total, ordered=True)
        else:
            self._compare_steps(own, total)

    def _sum_on_host(self, array: Any) -> np.ndarray:
        self._meet()
        with jax.default_device(self._device):
            part = jax.device_put(np.asarray(array)[None], self._device)
        shape = (self.size, *array.shape)
        whole = jax.make_array_from_single_device_arrays(shape, self._apart, [part])
        return np.asarray(self._total(whole).addressable_data(0))

    def _put(self, key: str, text: str) -> None:
        self._client.key_value_set(f"keras_tfopt/{key}", text)

    def _get(self, key: str, seconds: float) -> str | None:
        key = f"keras_tfopt/{key}"
        try:
            if not seconds:
                return self._client.key_value_try_get(key)
            return self._client.blocking_key_value_get(key, max(1, int(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith(("DEADLINE_EXCEEDED", "NOT_FOUND")):
                return None
            raise

    def _remove(self, key: str) -> None:
        self._client.key_value_delete(f"keras_tfopt/{key}")

    def _shut_down(self) -> None:
        if self._owns_cluster and not self._failed:
            jax.distributed.shutdown()


def patience(timeout: float) -> int:
    """Return a time-out in whole seconds, as JAX takes it."""
    return max(1, math.ceil(timeout))


def silence(timeout: float) -> int:
    """Return for how many seconds a worker may give no sign of life before JAX aborts another."""
    return patience(timeout) + SPARE if HEARTBEAT in KNOWN else USUAL_SILENCE


def start_cluster(timeout: float, cluster: dict[str, Any]) -> None:
    """Connect the processes of a JAX cluster."""
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "JAX is running already, and what connects workers has to be started before anything "
            "else: call keras_tfopt.distributed.connect() right after the imports, before the "
            "first array, model or data set"
        )
    seconds = patience(timeout)
    if HAS_FLAG:
        # By default, JAX waits half an hour for a worker that has died in a sum.
        flag = f"--xla_cpu_collective_timeout_seconds={seconds}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    timeouts = {
        "initialization_timeout": seconds,
        HEARTBEAT: silence(timeout),
        "shutdown_timeout_seconds": seconds,
    }
    timeouts = {name: value for name, value in timeouts.items() if name in KNOWN}
    try:
        jax.distributed.initialize(**cluster, **timeouts)
    except jax.errors.JaxRuntimeError as error:
        raise RuntimeError(
            f"This worker did not find the others within the {timeout:g} s that `timeout` of "
            f"keras_tfopt.distributed.connect allows. Received: {cluster}. ({error})"
        ) from error
    if jax.process_count() > 1:
        print(
            f"Worker {jax.process_index()}: if worker 0 dies, or another gives no sign of life for "
            f"{silence(timeout)} s, JAX itself aborts this process.",
            file=sys.stderr,
        )
