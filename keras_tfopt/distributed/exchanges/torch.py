"""Workers on torch.distributed, one process each."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import distributed

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.processes import Processes
from keras_tfopt.distributed.exchanges.torch_shards import TorchShards, exchange_device
from keras_tfopt.distributed.exchanges.torch_tables import WorkerRows


class TorchDistributed(Processes):
    """The workers of a process group: the program's own, or one from torchrun's environment.

    gloo sums tensors of CPUs, NCCL those of CUDA devices.
    """

    may_miss_gradients = True

    def __init__(self, timeout: float):
        self._owns_group = not distributed.is_initialized()
        if self._owns_group:
            start_group(timeout)
        super().__init__(distributed.get_rank(), distributed.get_world_size(), timeout)
        self._compares = True
        store = distributed.distributed_c10d._get_default_store()
        self._store: Any = distributed.PrefixStore("keras_tfopt", store)

    @torch.no_grad()
    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        return self.watch(lambda: flat.summed(_sum, tensors))

    def count(self, counts: np.ndarray, step: Callable[[], int]) -> np.ndarray:
        own = step() if self._compares else 0
        sent = np.array([*counts.flat, self._compares, own], "int32")
        total = torch.from_numpy(sent).to(exchange_device())
        self.watch(lambda: distributed.all_reduce(total), begins=True)
        *sums, comparing, steps = total.tolist()
        # Where only some have loaded state, all compare in the next step.
        self._compares = 0 < comparing < self.size
        if comparing == self.size:
            self._compare_steps(own, steps)
        return np.reshape(sums, counts.shape)

    def expect_steps(self) -> None:
        self._compares = True

    def check_steps(self, own: Any, total: Any) -> None:
        # Once, as a process waits for its GPU to read a number.
        if self._compares:
            self._compares = False
            self._compare_steps(own, total)

    def shards(self) -> TorchShards:
        return TorchShards(self)

    def row_shards(self, rows: int) -> WorkerRows:
        return WorkerRows(self, rows)

    def watch(self, exchange: Callable[[], Any], reads: bool = False, begins: bool = False) -> Any:
        """Return the result of an exchange; an error names the worker that is missing.

        With `reads`, it reads state outside of steps; with `begins`, it is a part of the next one.
        """
        what = self._count(reads, begins)
        try:
            return exchange()
        except RuntimeError as error:
            raise self._fault(what, error) from error

    def _sum_on_host(self, integers: np.ndarray) -> np.ndarray:
        (total,) = self.all_reduce_sum([torch.tensor(integers, device=exchange_device())])
        return total.cpu().numpy()

    def _put(self, key: str, text: str) -> None:
        self._store.set(key, text)

    def _get(self, key: str, seconds: float) -> str | None:
        if not self._store.check([key]):
            if not seconds:
                return None
            try:
                self._store.wait([key], datetime.timedelta(seconds=seconds))
            except distributed.DistStoreError:
                return None
        return self._store.get(key).decode()

    def _remove(self, key: str) -> None:
        self._store.delete_key(key)

    def _disconnect(self) -> None:
        if self._owns_group and distributed.is_initialized():
            distributed.destroy_process_group()

    def _shut_down(self) -> None:
        # Otherwise the store of worker 0 lives on, and gives the next group addresses of this one.
        self._store = None


def _sum(tensor: Any) -> Any:
    where = tensor.device
    if where.type not in ("cpu", "cuda"):
        tensor = tensor.cpu()  # gloo knows no other devices
    distributed.all_reduce(tensor)
    return tensor.to(where)


def start_group(timeout: float) -> None:
    """Start a process group from torchrun's environment."""
    backend = "gloo"
    if torch.cuda.is_available() and distributed.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        # Raise errors in the exchange; otherwise a thread of NCCL ends the process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    try:
        distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    except RuntimeError as error:
        raise RuntimeError(
            f"Worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not find the others "
            f"at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within the {timeout:g} s "
            f"that `timeout` of keras_tfopt.distributed.connect allows. ({error})"
        ) from error
