"""Starts the workers of a script on this machine.

    python -m keras_tfopt.distributed.launch -n 2 script.py --an-argument of-the-script

Each worker is a process with the environment in which `keras_tfopt.distributed.connect` finds the
others, for the backend that Keras has now. What it prints gets its rank in front. When a worker
fails, the others may say why they cannot go on, and are then ended; its status is that of the
launcher (128 and the number of the signal, if it was one). On PyTorch, the workers are started and
watched by torchrun's agent. Several machines need a launcher of theirs, such as torchrun, Slurm, or
one that sets `TF_CONFIG`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, NoReturn

import keras

from keras_tfopt.execution.exchanges import environment

PATIENCE = 5.0  # seconds between asking a process to end and ending it


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the status of the first worker that failed, or 0."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_tfopt.distributed.launch",
        description="Starts the workers of a script on this machine.",
    )
    parser.add_argument("-n", "--workers", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long the others may go on when a worker has failed (default: 10; torchrun's "
        "agent grants no time)",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the program of all workers")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    chosen = parser.parse_args(arguments)
    if chosen.workers < 1:
        parser.error(f"argument -n must be an integer >= 1. Received: {chosen.workers}")
    if not chosen.module and not os.path.isfile(chosen.script):
        parser.error(f"there is no file {chosen.script}")
    program = ["-m", chosen.script] if chosen.module else [chosen.script]
    return launch(chosen.workers, [sys.executable, *program, *chosen.arguments], chosen.grace)


def launch(workers: int, command: Sequence[str], grace: float = 10.0) -> int:
    """Runs a command in each of some workers on this machine.

    Args:
        workers: How many, integer >= 1.
        command: Program and arguments.
        grace: Seconds that the others have to end when a worker has failed.

    Returns:
        0, or the status of the worker that failed first.
    """
    backend = keras.backend.backend()
    shared = {
        "KERAS_BACKEND": backend,
        "PYTHONUNBUFFERED": "1",
        # Each worker takes its part of the processors, unless told otherwise.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
        **loopback(),
        **os.environ,
    }
    with ended_by_signals():
        try:
            if backend == "torch":
                from keras_tfopt.execution.exchanges import torchrun

                failed = torchrun.run(workers, command, shared)
            else:
                failed = run(workers, command, shared, backend, grace)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    if failed is None:
        return 0
    rank, status = failed
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    print(f"Worker {rank} of {workers} ended {how}.", file=sys.stderr)
    return status if status > 0 else 128 - status


def run(
    workers: int, command: Sequence[str], shared: dict[str, str], backend: str, grace: float
) -> tuple[int, int] | None:
    """Runs workers to their end; gives the rank that failed first and its status."""
    ports = free_ports(environment.ports_needed(backend, workers))
    processes: list[subprocess.Popen] = []
    readers = []
    lock = threading.Lock()
    try:
        for rank in range(workers):
            own = environment.of_worker(backend, rank, workers, ports)
            process = subprocess.Popen(
                command,
                env={**shared, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                reader = threading.Thread(target=copy, args=(source, target, rank, lock))
                reader.start()
                readers.append(reader)
        return watch(processes, grace)
    finally:
        end(processes)
        for reader in readers:
            reader.join(PATIENCE)


interrupted = threading.Event()


def watch(processes: list[subprocess.Popen], grace: float) -> tuple[int, int] | None:
    """Waits until all have ended, or for a while after one has failed."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while True:
        if interrupted.is_set():
            raise KeyboardInterrupt
        ended = [process.poll() for process in processes]
        if failed is None:
            failed = next(((rank, status) for rank, status in enumerate(ended) if status), None)
            if failed is not None:
                deadline = time.monotonic() + grace
        if None not in ended or time.monotonic() > deadline:
            return failed
        time.sleep(0.05)


def end(processes: list[subprocess.Popen]) -> None:
    """Asks those that still run to end, and makes them."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def copy(source: IO[str], target: IO[str], rank: int, lock: threading.Lock) -> None:
    """Passes lines on with the rank of their worker in front."""
    for line in source:
        with lock:
            target.write(f"[{rank}] {line.rstrip()}\n")
            target.flush()


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nobody listens."""
    with contextlib.ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def loopback() -> dict[str, str]:
    """How gloo gets to know this machine, whose own name need not resolve."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names else {}


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Makes a request to terminate end the workers as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        interrupted.set()  # an exception is lost where a finalizer happens to run
        raise KeyboardInterrupt

    interrupted.clear()
    before = {sent: signal.signal(sent, interrupt) for sent in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


if __name__ == "__main__":
    sys.exit(main())
