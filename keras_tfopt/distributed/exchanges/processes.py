"""Base class of engines with a process for each worker: notes, and errors that explain faults."""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tfopt.distributed.exchanges import flat
from keras_tfopt.distributed.exchanges.exchange import Exchange

LOOK = 1.0  # seconds between two checks of which workers have left
AFTER_A_FAULT = 3.0  # seconds that workers wait for each other to find out which one is missing
BUILDING = "building its optimizer"  # the names of such exchanges in errors
READING = "reading the state that workers divide"

# What to do where workers do not come to the same exchanges.
UNEQUAL_STEPS = (
    "Unequal numbers of steps: give all workers the same number of batches in an epoch "
    "(`steps_per_epoch`, or data of the same size) and of epochs, and let none stop alone, by "
    "`stop_training`, EarlyStopping on its own data or `sys.exit`. Its own output may say more"
)
NOT_ALL_BUILD = "All workers must train, with optimizers over workers: see its own output"
NOT_ALL_READ = (
    "All workers must save a model, if one does, and all must enter keras_tfopt.averaged: they "
    "read the state of each other"
)


class Processes(Exchange):
    """Workers that leave each other notes in the key-value store of their backend.

    A note `here/N/RANK` says that a worker is about to add to sum N, and for what. A note
    `left/RANK` says after how many exchanges a worker left, and why. By these notes, errors can say
    which worker is missing.
    """

    ending = ""  # text at the end of an error that says how this process is going to end

    def __init__(self, rank: int, size: int, timeout: float):
        self.rank, self.size, self.timeout = rank, size, timeout
        self._exchanges = 0  # sums in steps, which errors and notes count
        self._sums = 0  # all sums
        self._gathered = 0
        self._broadcasts = self._failed = self._closed = False
        # It runs before the backend closes its store.
        atexit.register(self._at_exit)

    # ---- To be defined by an engine -------------------------------------------------------------

    def _put(self, key: str, text: str) -> None:
        raise NotImplementedError

    def _get(self, key: str, seconds: float) -> str | None:
        """Return the text of a note, or None if it does not exist within some seconds."""
        raise NotImplementedError

    def _remove(self, key: str) -> None:
        raise NotImplementedError

    def _sum_on_host(self, integers: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _disconnect(self) -> None:
        """Close the connection for tensors, but not the store."""

    def _shut_down(self) -> None:
        """Close the store."""

    # ---- When an optimizer is built -------------------------------------------------------------

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        integers = flat.packed(arrays)
        if not integers.size:
            return list(arrays)
        # The other workers add zeros, so the sum has exactly the bits of worker 0.
        mine = integers if self.rank == 0 else np.zeros_like(integers)
        self._broadcasts = True
        try:
            return flat.unpacked(self._sum_on_host(mine), arrays)
        finally:
            self._broadcasts = False

    def gather(self, text: str) -> list[str]:
        self._gathered += 1
        deadline = time.monotonic() + self.timeout
        keys = [f"text/{self._gathered}/{rank}" for rank in range(self.size)]
        with self._notes():
            self._put(keys[self.rank], text)
        return [self._wait_for(key, keys, deadline, BUILDING) for key in keys]

    # ---- In exchanges of an optimizer -----------------------------------------------------------

    def _compare_steps(self, own: Any, total: Any) -> None:
        """Raise an error if the steps of all workers are not those of this one, times their number.

        Called on the host.
        """
        own, others = int(own), int(total) - int(own)
        if others != own * (self.size - 1):
            raise self._error(
                "the workers are at different steps, as they went on from different saved states. "
                "All must load the state of the same step, or none. Received: step "
                f"{own} here, {others} for the other "
                f"{'worker' if self.size == 2 else 'workers, added up'}"
            )

    # ---- Before and after exchanges -------------------------------------------------------------

    def _count(self, reads: bool = False, begins: bool = False) -> str:
        """Count the next sum, and return its name for errors.

        With `reads`, it reads state outside of steps; with `begins`, it is a part of the next
        exchange.
        """
        if self._closed:
            raise RuntimeError(
                "These workers are disconnected. Call keras_tfopt.distributed.connect(), and make "
                "the optimizer anew"
            )
        self._sums += 1
        if begins:
            return f"exchange {self._exchanges + 1}"
        if self._broadcasts:
            return "sending the initial weights"
        if reads:
            return READING
        self._exchanges += 1
        return f"exchange {self._exchanges}"

    def _arrive(self, what: str) -> list[str]:
        """Leave a note for the next sum; return the keys of all workers' notes for it."""
        keys = [f"here/{self._sums}/{rank}" for rank in range(self.size)]
        with self._notes():
            self._put(keys[self.rank], what)
        return keys

    def _meet(self) -> None:
        """Wait until all workers are about to exchange: a sum could not say who is missing."""
        what, deadline = self._count(), time.monotonic() + self.timeout
        number, keys = self._sums, self._arrive(what)
        for key in keys[1:] if self.rank == 0 else [f"go/{number}"]:
            self._wait_for(key, keys, deadline, what)
        # All workers have arrived, so no worker reads the notes of the previous sum any more.
        with self._notes():
            if self.rank == 0:
                self._put(f"go/{number}", "+")
            if number > 1:
                self._remove(f"here/{number - 1}/{self.rank}")
                if self.rank == 0:
                    self._remove(f"go/{number - 1}")

    def _fault(self, what: str, cause: BaseException) -> RuntimeError:
        """Return the error for an exchange that failed, if the workers did not meet before it."""
        deadline = time.monotonic() + AFTER_A_FAULT
        try:
            keys = self._arrive(what)
            others = [self._wait_for(key, keys, deadline, what, str(cause)) for key in keys]
            gone = self._gone()
        except RuntimeError as error:
            return error
        if gone:
            return self._error(self._explained(what, [], gone, ""))
        readers = [rank for rank, other in enumerate(others) if other == READING]
        if readers and len(readers) < self.size:
            return self._error(f"{what} failed: only workers {readers} read. {NOT_ALL_READ}")
        return self._error(f"{what} failed, though all workers came to it: {cause}")

    @contextlib.contextmanager
    def _notes(self) -> Iterator[None]:
        """Turn errors of reading and writing notes into one that explains the cause."""
        try:
            yield
        except Exception as cause:
            raise self._error(
                "notes between the workers cannot be read. The process that keeps them, which is "
                f"worker 0 or its launcher, has died. ({type(cause).__name__}: {cause})"
            ) from cause

    def _wait_for(
        self, key: str, keys: list[str], deadline: float, what: str, cause: str = ""
    ) -> str:
        """Return the text of a note; `keys` are those of all workers for the same purpose."""
        with self._notes():
            gone: dict[int, dict[str, Any]] = {}
            left = deadline - time.monotonic()
            while True:
                # Do not wait for a worker that has left: it wrote its note before, if at all.
                text = self._get(key, 0.0 if gone else min(LOOK, max(left, 0.0)))
                if text is not None:
                    return text
                if gone or left <= 0:
                    break
                gone, left = self._gone(), deadline - time.monotonic()
            others = [(rank, k) for rank, k in enumerate(keys) if rank != self.rank]
            missing = [rank for rank, k in others if self._get(k, 0.0) is None]
            gone = gone or self._gone()
        raise self._error(self._explained(what, missing, gone, cause))

    def _gone(self) -> dict[int, dict[str, Any]]:
        """Return the last notes of the workers that have left, by rank."""
        notes = {r: self._get(f"left/{r}", 0.0) for r in range(self.size) if r != self.rank}
        return {rank: json.loads(note) for rank, note in notes.items() if note is not None}

    def _explained(
        self, what: str, missing: list[int], gone: dict[int, dict[str, Any]], cause: str
    ) -> str:
        # Others may have left because of the first one, which may have died without a note.
        first = {rank: note for rank, note in gone.items() if not note["waited"]}
        dead = [rank for rank in missing if rank not in gone]
        if not (first or dead):
            first = gone
        for rank, note in first.items():
            if note["error"]:
                return f"{what} is impossible: worker {rank} has ended with {note['error']}"
        if first:
            rank, note = min(first.items(), key=lambda one: one[1]["exchanges"])
            remedy = {READING: NOT_ALL_READ, BUILDING: NOT_ALL_BUILD}.get(what, UNEQUAL_STEPS)
            return (
                f"{what} is impossible: worker {rank} has left after {note['exchanges']} "
                f"exchanges. {remedy}"
            )
        missing = dead or missing
        who = ("worker " if len(missing) == 1 else "workers ") + ", ".join(map(str, missing))
        limit = f"the {self.timeout:g} s that `timeout` of keras_tfopt.distributed.connect allows"
        if cause:
            return (
                f"{what} failed, and {who} did not answer after that. It has died, "
                f"or took longer than {limit}: see its own output. ({cause})"
            )
        return (
            f"{what} is impossible: {who} did not come within {limit}. It has died, or it stalls, "
            "or its steps take longer than that: see its own output"
        )

    def _error(self, text: str) -> RuntimeError:
        self._failed = True
        return RuntimeError(f"Worker {self.rank} of {self.size}: {text}{self.ending}")

    # ---- Leaving --------------------------------------------------------------------------------

    def close(self) -> None:
        self._leave(sys.exc_info()[1])

    def _at_exit(self) -> None:
        self._leave(getattr(sys, "last_value", None))

    def _leave(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        reason = None if error is None else f"{type(error).__name__}: {error}"
        failed = self._failed or error is not None
        deadline = time.monotonic() + (min(self.timeout, AFTER_A_FAULT) if failed else self.timeout)
        try:
            waited = self._failed  # for others, in vain
            note = {"exchanges": self._exchanges, "error": reason, "waited": waited}
            self._put(f"left/{self.rank}", json.dumps(note))
            self._disconnect()
            # Worker 0 keeps the notes. The others may still have to read why somebody left.
            for rank in range(1, self.size) if self.rank == 0 else ():
                self._get(f"left/{rank}", max(0.0, deadline - time.monotonic()))
            self._shut_down()
        except Exception as fault:
            if not failed:
                print(f"Worker {self.rank} could not say that it leaves: {fault}", file=sys.stderr)
