"""Starts the processes of workers, and says how they ended."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

from keras_tfopt.distributed import environment
from keras_tfopt.distributed.launch import free_ports, loopback
from tests.stepping import BACKEND

ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass
class Ended:
    status: int | None  # None: it had to be killed, as it did not end
    ended: float  # when, on the clock of time.time()
    text: str  # what it printed


def error_of(action):
    """The error that a function raises, as text; "" where it raises none."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def settings(**more):
    """The environment of a process: one thread, no device but the CPU, and JAX as users have it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = {k: v for k, v in os.environ.items() if k not in ("JAX_ENABLE_X64", "XLA_FLAGS")}
    return {
        **known,
        **loopback(),
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **more,
    }


def run(module, *arguments, workers=2, limit=240, **more):
    """Runs a module in some workers, and gives how each ended; after the limit they are killed."""
    ports = free_ports(environment.ports_needed(BACKEND, workers))
    command = [sys.executable, "-m", module, *map(str, arguments)]
    processes = []
    for rank in range(workers):
        own = environment.of_worker(BACKEND, rank, workers, ports)
        processes.append(
            subprocess.Popen(
                command,
                env=settings(**own, **more),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    deadline, ended = time.monotonic() + limit, {}
    try:
        while len(ended) < workers and time.monotonic() < deadline:
            for rank, process in enumerate(processes):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = process.returncode, time.time()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    return [
        Ended(*ended.get(rank, (None, time.time())), process.communicate()[0])
        for rank, process in enumerate(processes)
    ]


def run_alone(module, *arguments, limit=240, **more):
    """Runs a module in one process that is no worker."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=settings(**more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return Ended(done.returncode, time.time(), done.stdout)
