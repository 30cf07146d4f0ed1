"""Start the workers of a script on this machine.

    python -m keras_tfopt.distributed.launch -n 2 script.py --an-argument of-the-script

Each worker is a process with the environment by which `keras_tfopt.distributed.connect` finds the
others, for the current backend of Keras. Each line that it prints begins with its rank. If a worker
fails, the others have some seconds to end with their own errors; then they are terminated. The
launcher returns the status of the worker that failed first (128 plus the number of the signal, if a
signal ended it). Several machines need another launcher: torchrun, Slurm, or one that sets
`TF_CONFIG`.
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

from keras_tfopt.distributed import environment

PATIENCE = 5.0  # seconds between asking a process to end and killing it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the status of the first worker that failed, or 0."""
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
        help="how long the others may go on when a worker has failed (default: 10)",
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
    """Run a command in each of some workers on this machine.

    Args:
        workers: How many, integer >= 1.
        command: Program and arguments.
        grace: Seconds that the others have to end after a worker has failed.

    Returns:
        0, or the status of the worker that failed first.
    """
    interrupted = threading.Event()
    try:
        with ended_by_signals(interrupted):
            failed = run(workers, command, grace, interrupted)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if failed is None:
        return 0
    rank, status = failed
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    print(f"Worker {rank} of {workers} ended {how}.", file=sys.stderr)
    return status if status > 0 else 128 - status


def run(
    workers: int, command: Sequence[str], grace: float, interrupted: threading.Event
) -> tuple[int, int] | None:
    """Run workers to their end; return the rank that failed first and its status."""
    backend = keras.backend.backend()
    shared = {
        "KERAS_BACKEND": backend,
        "PYTHONUNBUFFERED": "1",
        # Divide the processors among the workers.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
        **loopback(),
        **os.environ,
    }
    ports = free_ports(environment.ports_needed(backend, workers))
    processes: list[subprocess.Popen] = []
    readers = []
    lock = threading.Lock()
    try:
        for rank in range(workers):
            process = subprocess.Popen(
                command,
                env={**shared, **environment.of_worker(backend, rank, workers, ports)},
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
        return watch(processes, grace, interrupted)
    finally:
        end(processes)
        for reader in readers:
            reader.join(PATIENCE)


def watch(
    processes: list[subprocess.Popen], grace: float, interrupted: threading.Event
) -> tuple[int, int] | None:
    """Wait until all have ended, or for `grace` seconds after one has failed."""
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
    """Ask running processes to end, and kill those that do not."""
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
    """Copy lines to a stream, each with the rank of its worker in front."""
    for line in source:
        with lock:
            target.write(f"[{rank}] {line.rstrip()}\n")
            target.flush()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free."""
    with contextlib.ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def loopback() -> dict[str, str]:
    """Return the setting by which gloo finds this machine, whose name may not resolve."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names else {}


@contextlib.contextmanager
def ended_by_signals(interrupted: threading.Event) -> Iterator[None]:
    """Make SIGTERM end the workers as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        interrupted.set()  # Python drops an exception that is raised while a finalizer runs
        raise KeyboardInterrupt

    before = {sent: signal.signal(sent, interrupt) for sent in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


if __name__ == "__main__":
    sys.exit(main())
