"""Read, check and make the environment variables that tell a process which worker it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
LAUNCHERS = {
    "torch": "torchrun (RANK, WORLD_SIZE)",
    "tensorflow": "TensorFlow (TF_CONFIG)",
    "jax": "JAX (JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID)",
}
START = "`python -m keras_tfopt.distributed.launch -n 2 script.py` sets all that is needed"


def meant_for(environment: Mapping[str, str]) -> list[str]:
    """Return the backends whose launchers have set something."""
    found = ["tensorflow"] if environment.get("TF_CONFIG") else []
    if any(environment.get(name) for name in JAX):
        found.append("jax")
    # Other tools may set a single one of these.
    if sum(bool(environment.get(name)) for name in TORCH) > 1:
        found.append("torch")
    return found


def check_meant_for(backend: str, environment: Mapping[str, str]) -> None:
    """Raise an error if the environment describes workers on another backend only."""
    others = meant_for(environment)
    if others and backend not in others:
        raise RuntimeError(
            f"The environment describes workers on {' and '.join(LAUNCHERS[o] for o in others)}, "
            f"but the backend of Keras is {backend}. Set KERAS_BACKEND to the former, or start "
            f"the workers for the latter: {START}"
        )


def torch_size(environment: Mapping[str, str]) -> int:
    """Return the number of workers that torchrun has started; 0 without torchrun."""
    if "torch" not in meant_for(environment):
        return 0
    return _rank_and_size(environment, TORCH, "RANK", "WORLD_SIZE")[1]


def jax_cluster(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments of `jax.distributed.initialize`; none if JAX's variables are not set."""
    if "jax" not in meant_for(environment):
        return {}
    rank, size = _rank_and_size(environment, JAX, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    address = environment["JAX_COORDINATOR_ADDRESS"]
    return {"coordinator_address": address, "num_processes": size, "process_id": rank}


def tensorflow_cluster(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the names of the workers of TF_CONFIG by rank, and the rank of this one."""
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


def _rank_and_size(
    environment: Mapping[str, str], names: tuple[str, ...], rank: str, size: str
) -> tuple[int, int]:
    """Return rank and number of workers, or raise an error if a variable is missing."""
    values = {name: environment[name] for name in names if environment.get(name)}
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(
            f"The environment describes workers in part only: {', '.join(names)} must be set, all "
            f"or none. Missing: {', '.join(missing)}. Received: {values}. {START}"
        )
    workers = _integer(size, values[size], 1)
    return _integer(rank, values[rank], 0, workers), workers


def _integer(name: str, text: str, low: int, high: int | None = None) -> int:
    if not text.isdecimal() or int(text) < low or (high is not None and int(text) >= high):
        above = "" if high is None else f" and below {high}"
        raise ValueError(
            f"Environment variable {name} must be an integer from {low}{above}. Received: {text!r}"
        )
    return int(text)


def ports_needed(backend: str, size: int) -> int:
    """Return how many ports of this machine `of_worker` needs."""
    return size if backend == "tensorflow" else 1


def of_worker(backend: str, rank: int, size: int, ports: list[int]) -> dict[str, str]:
    """Return the variables by which `connect` finds the workers on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    if backend == "tensorflow":
        task = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
    if backend == "jax":
        return dict(zip(JAX, [addresses[0], str(size), str(rank)], strict=True))
    values = [str(rank), str(size), "127.0.0.1", str(ports[0])]
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    return {**dict(zip(TORCH, values, strict=True)), **local}
