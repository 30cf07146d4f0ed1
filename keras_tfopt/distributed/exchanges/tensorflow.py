"""Workers on the collectives of TensorFlow, one process each."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager
from tensorflow.python.ops import control_flow_v2_func_graphs as branches

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.processes import Processes
from keras_tfopt.engine.backends.tensorflow.private import in_xla

GROUP_KEY = 721_001  # larger than the keys that strategies use, which count from 1
QUICK = 200  # milliseconds to look for a note that may not exist


class TensorFlowCollectives(Processes):
    """The workers of TF_CONFIG, each with plain variables.

    A `MultiWorkerMirroredStrategy` connects them, but its scope is never entered.

    Args:
        names: Workers by rank, as `/job:worker/replica:0/task:0`.
        rank: Which of them this is.
        timeout: Seconds to wait for others.
    """

    def __init__(self, names: list[str], rank: int, timeout: float):
        context = eager.context()
        if context._context_handle is not None:
            raise RuntimeError(
                "TensorFlow is running already, and what connects workers has to be started before "
                "anything else: call keras_tfopt.distributed.connect() right after the imports, "
                "before the first tensor, model or data set"
            )
        self._context = context
        configure(context, names, timeout)
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.OpError as error:
            raise RuntimeError(
                f"Worker {rank} of {len(names)} did not find the others of TF_CONFIG within the "
                f"{timeout:g} s that `timeout` of keras_tfopt.distributed.connect allows. ({error})"
            ) from error
        super().__init__(rank, len(names), timeout)
        self._keys: dict[int, tuple] = {}

    def all_reduce_sum(self, tensors: list[Any]) -> list[Any]:
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if tf.executing_eagerly():
            self._meet()
            return flat.summed(lambda own: self._sum(own, "eager", 0), tensors)
        if in_xla():
            raise ValueError(
                "Workers cannot exchange inside of a step that XLA compiles: compile the model "
                "with `jit_compile=False`. Received: jit_compile=True"
            )
        place = next_place(tf.compat.v1.get_default_graph())

        def meet() -> np.int32:
            self._meet()
            return np.int32(0)

        met = tf.numpy_function(meet, [], tf.int32)
        with tf.control_dependencies([met]):
            return flat.summed(lambda own: self._sum(own, "graph", place), tensors)

    def check_steps(self, own: Any, total: Any) -> None:
        def compare(own: np.ndarray, total: np.ndarray) -> np.int32:
            self._compare_steps(own, total)
            return np.int32(0)

        tf.numpy_function(compare, [own, total], tf.int32)

    def _sum(self, tensor: Any, *place: Any) -> Any:
        # The key must be equal on all workers, even if one of them traces a step more often.
        what = (tensor.dtype.name, tensor.shape[0], *place)
        key = zlib.crc32(repr(what).encode()) % 2**30
        if self._keys.setdefault(key, what) != what:
            raise RuntimeError(f"{what} and {self._keys[key]} have the same key: {key}")
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=self.size,
            group_key=GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            timeout_seconds=self.timeout,
        )

    def _sum_on_host(self, integers: np.ndarray) -> np.ndarray:
        with tf.init_scope(), tf.device("CPU:0"):
            (total,) = self.all_reduce_sum([tf.identity(integers)])
            return total.numpy()

    def _put(self, key: str, text: str) -> None:
        self._context.set_config_key_value(f"keras_tfopt/{key}", text)

    def _get(self, key: str, seconds: float) -> str | None:
        # TensorFlow has no look-up that returns at once, and a busy machine answers late.
        milliseconds = max(QUICK, int(1000 * seconds))
        try:
            return self._context.get_config_key_value(f"keras_tfopt/{key}", milliseconds)
        except tf.errors.DeadlineExceededError:
            return None

    def _remove(self, key: str) -> None:
        self._context.delete_config_key_value(f"keras_tfopt/{key}")


def next_place(graph: Any) -> int:
    """Return the number of exchanges in a function so far, and count one more."""
    while isinstance(graph, (branches.CondBranchFuncGraph, branches.WhileBodyFuncGraph)):
        graph = graph.outer_graph
    place = getattr(graph, "_keras_tfopt_exchanges", 0)
    graph._keras_tfopt_exchanges = place + 1
    return place


def configure(context: Any, names: list[str], timeout: float) -> None:
    """Set the time-out of the service by which the workers find each other."""
    jobs = [name.split("/")[1].removeprefix("job:") for name in names]
    service = tf.compat.v1.ConfigProto().experimental.coordination_config
    for job in dict.fromkeys(jobs):
        service.coordinated_job_list.add(name=job, num_tasks=jobs.count(job))
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=names[0],
        cluster_register_timeout_in_ms=int(1000 * timeout),
        coordinated_jobs=list(service.coordinated_job_list),
    )
