"""Workers on the devices of a mesh, which run one JAX program."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import PartitionSpec

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.exchange import OneProcess
from keras_tfopt.distributed.exchanges.jax_processes import JaxProcesses
from keras_tfopt.engine.access import array_of
from keras_tfopt.engine.keras_private import layers_in


class JaxMesh(OneProcess):
    """The devices along the batches of `keras.distribution.DataParallel`, each a worker.

    Keras stores a copy of each weight on every device. Here these copies differ, so the training
    step has to run inside `apart`.

    Args:
        processes: The connection of the processes, if the mesh has devices of several.
    """

    def __init__(self, processes: JaxProcesses | None = None):
        distribution = keras.distribution.distribution()
        self._owns_distribution = distribution is None
        if distribution is None:
            distribution = keras.distribution.DataParallel(
                devices=keras.distribution.list_devices(), auto_shard_dataset=False
            )
            keras.distribution.set_distribution(distribution)
        if not isinstance(distribution, keras.distribution.DataParallel):
            raise ValueError(
                "Replicas can train apart only where each device has a whole model: set a "
                f"keras.distribution.DataParallel. Received: {distribution}"
            )
        self.mesh = distribution.device_mesh.backend_mesh
        self.axis = distribution.batch_dim_name
        devices = list(self.mesh.devices.flat)
        self.size = len(devices)
        self.rank = next(n for n, d in enumerate(devices) if d.process_index == jax.process_index())
        self._processes = processes
        self.one_process = processes is None
        self._apart: weakref.WeakSet[keras.Model] = weakref.WeakSet()

    def prepare(self, optimizer: Any) -> None:
        if getattr(optimizer, "shard_state", False):
            raise ValueError(
                "Workers on the devices of a mesh each keep state of their own, which cannot be "
                f"split over them. Received: shard_state=True of {type(optimizer).__name__}"
            )

    def rank_now(self) -> Any:
        self._check_apart()
        return jax.lax.axis_index(self.axis)

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        self._check_apart()
        return flat.summed(lambda own: jax.lax.psum(own, self.axis), tensors)

    def cond(
        self, predicate: Any, function: Callable[[list[Any]], list[Any]], tensors: list[Any]
    ) -> list[Any]:
        self._check_apart()
        return super().cond(predicate, function, tensors)

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return list(arrays) if self._processes is None else self._processes.broadcast(arrays)

    def gather(self, text: str) -> list[str]:
        if self._processes is None:
            return super().gather(text)
        texts = self._processes.gather(text)
        return [texts[device.process_index] for device in self.mesh.devices.flat]

    @property
    def workers_here(self) -> int:
        return len(self.mesh.local_devices)

    def values_of(self, variable: Any) -> list[np.ndarray]:
        return [array_of(part.data) for part in variable.value.addressable_shards]

    def set_values(self, variable: Any, values: list[np.ndarray]) -> None:
        shape, dtype = variable.value.shape, variable.value.dtype
        placed = [
            jax.device_put(jax.numpy.asarray(value, dtype), device)
            for value, device in zip(values, self.mesh.local_devices, strict=True)
        ]
        whole = jax.sharding.NamedSharding(self.mesh, PartitionSpec())
        variable.assign(jax.make_array_from_single_device_arrays(shape, whole, placed))

    def close(self) -> None:
        if self._owns_distribution:
            keras.distribution.set_distribution(None)
            self._owns_distribution = False
        if self._processes is not None:
            self._processes.close()

    def apart(self, step: Callable[[Any, Any], tuple[Any, Any]]) -> Callable:
        """Run `step(state, data) -> logs, state` on each device, with its part of the data.

        Logs are averaged over the devices. Each device keeps its own state.
        """
        everywhere, split = PartitionSpec(), PartitionSpec(self.axis)

        def on_one_device(state: Any, data: Any) -> tuple[Any, Any]:
            logs, state = step(state, data)
            return jax.lax.pmean(logs, self.axis), state

        return jax.shard_map(
            on_one_device,
            mesh=self.mesh,
            in_specs=(everywhere, split),
            out_specs=(everywhere, everywhere),
            check_vma=False,
        )

    def train_apart(self, model: keras.Model) -> None:
        step = model.train_step
        if model in self._apart:
            return

        def of_one_replica(state: tuple, data: Any) -> tuple[Any, tuple]:
            trainable, rest, slots, before = state
            state = trainable, shifted(rest, 1), slots, before
            logs, (trainable, rest, slots, after) = step(state, data)
            # Metrics are sums over batches.
            metrics = [
                old + jax.lax.psum(new - old, self.axis)
                for old, new in zip(before, after, strict=True)
            ]
            known = list(zip(model.metrics_variables, metrics, strict=True))
            with keras.StatelessScope(state_mapping=known):
                together = model.get_metrics_result()
            logs = {name: together.get(name, value) for name, value in logs.items()}
            return logs, (trainable, shifted(rest, -1), slots, metrics)

        def shifted(values: list[Any], sign: int) -> list[Any]:
            """Make the seeds of random layers differ between devices; sign -1 undoes this."""
            seeds = seed_states(model)
            number = jax.lax.axis_index(self.axis).astype("uint32") * np.uint32(0x9E3779B1)
            change = jax.numpy.stack([number, jax.numpy.zeros_like(number)])
            return [
                value + sign * change.astype(value.dtype) if id(variable) in seeds else value
                for variable, value in zip(model.non_trainable_variables, values, strict=True)
            ]

        model.train_step = self.apart(of_one_replica)
        self._apart.add(model)
        model.train_function = None  # if there is one, it has the old step

    def _check_apart(self) -> None:
        try:
            jax.lax.axis_index(self.axis)
        except NameError as error:
            raise RuntimeError(
                "On a mesh, workers exchange only in steps that run once on each device: call "
                "keras_tfopt.distributed.train_apart(model) before fit, or wrap the step of a loop "
                "of your own in keras_tfopt.distributed.current().apart"
            ) from error


def seed_states(model: keras.Model) -> set[int]:
    """Return the identities of the variables in which random layers keep their seeds."""
    layers = layers_in(model)
    return {id(g.state) for layer in layers for g in getattr(layer, "_seed_generators", ())}
