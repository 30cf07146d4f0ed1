"""Which workers there are, as the environment of a process says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
SPEAKERS = {
    "torch": "torchrun (RANK, WORLD_SIZE)",
    "tensorflow": "TensorFlow (TF_CONFIG)",
    "jax": "JAX (JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID)",
}
START = "`python -m keras_tfopt.distributed.launch -n 2 script.py` sets all that is needed"


def speaks_to(environment: Mapping[str, str]) -> list[str]:
    """The backends whose launchers have set something."""
    found = []
    if environment.get("TF_CONFIG"):
        found.append("tensorflow")
    if any(environment.get(name) for name in JAX):
        found.append("jax")
    # Other tools set one of these as well.
    if sum(bool(environment.get(name)) for name in TORCH) > 1:
        found.append("torch")
    return found


def check_meant_for(backend: str, environment: Mapping[str, str]) -> None:
    """Raises an error if the environment is that of workers on another backend only."""
    spoken = speaks_to(environment)
    if spoken and backend not in spoken:
        raise RuntimeError(
            f"The environment describes workers on {' and '.join(SPEAKERS[s] for s in spoken)}, "
            f"but the backend of Keras is {backend}. Set KERAS_BACKEND to the former, or start "
            f"the workers for the latter: {START}"
        )


def torch_size(environment: Mapping[str, str]) -> int:
    """Number of workers that torchrun has started; 0 without torchrun."""
    values = {name: environment.get(name, "") for name in TORCH}
    if "torch" not in speaks_to(environment):
        return 0
    check_complete(values)
    size = whole(values, "WORLD_SIZE", 1)
    whole(values, "RANK", 0, size)
    return size


def jax_cluster(environment: Mapping[str, str]) -> dict[str, Any]:
    """What `jax.distributed.initialize` is to be told; nothing without any of its variables."""
    values = {name: environment.get(name, "") for name in JAX}
    if not any(values.values()):
        return {}
    check_complete(values)
    size = whole(values, "JAX_NUM_PROCESSES", 1)
    return {
        "coordinator_address": values["JAX_COORDINATOR_ADDRESS"],
        "num_processes": size,
        "process_id": whole(values, "JAX_PROCESS_ID", 0, size),
    }


def tensorflow_cluster(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """The names of the workers of TF_CONFIG in the order of their ranks, and which this one is."""
    text = environment.get("TF_CONFIG", "")
    if not text:
        return [], 0
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], int(task["index"])
        counts = {job: len(cluster[job]) for job in ("chief", "worker") if job in cluster}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "TF_CONFIG must be JSON with `cluster` (addresses of the workers) and `task` (`type` "
            f"and `index` of this one). {type(error).__name__}: {error}. Received: {text}. {START}"
        ) from error
    ranks = [(job, number) for job, count in counts.items() for number in range(count)]
    if (kind, index) not in ranks:
        raise ValueError(
            "`task` in TF_CONFIG must be one of the workers in `cluster`: evaluators and parameter "
            f"servers do not train here. Received: TF_CONFIG={text}"
        )
    names = [f"/job:{job}/replica:0/task:{number}" for job, number in ranks]
    return names, ranks.index((kind, index))


def check_complete(values: dict[str, str]) -> None:
    missing = [name for name, value in values.items() if not value]
    if missing:
        there = {name: value for name, value in values.items() if value}
        raise ValueError(
            f"The environment describes workers in part only: {', '.join(values)} must be set, all "
            f"or none. Missing: {', '.join(missing)}. Received: {there}. {START}"
        )


def whole(values: dict[str, str], name: str, low: int, high: int | None = None) -> int:
    """The integer `low <= n < high` of a variable."""
    text = values[name]
    if not text.isdecimal() or int(text) < low or (high is not None and int(text) >= high):
        above = "" if high is None else f" and below {high}"
        raise ValueError(
            f"Environment variable {name} must be an integer from {low}{above}. Received: {text!r}"
        )
    return int(text)


def ports_needed(backend: str, size: int) -> int:
    """How many ports of this machine `of_worker` needs."""
    return size if backend == "tensorflow" else 1


def of_worker(backend: str, rank: int, size: int, ports: list[int]) -> dict[str, str]:
    """The variables with which `connect` makes a process one of some workers on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    if backend == "tensorflow":
        task = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
    if backend == "jax":
        return dict(zip(JAX, [addresses[0], str(size), str(rank)], strict=True))
    values = [str(rank), str(size), "127.0.0.1", str(ports[0])]
    return {**dict(zip(TORCH, values, strict=True)), "LOCAL_RANK": str(rank)}
