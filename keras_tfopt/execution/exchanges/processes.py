"""What engines share that run each worker in a process of its own: notes, and what faults mean."""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tfopt.execution.exchanges import flat
from keras_tfopt.execution.exchanges.exchange import Exchange

LOOK = 1.0  # seconds from one look at who has left to the next
AFTER_A_FAULT = 3.0  # seconds that workers wait for each other to find out which one is missing


class Processes(Exchange):
    """Workers that leave each other notes, in what their backend has for that.

    A note `here/N/RANK` says that a worker is about to add to sum N; `left/RANK`, after how many
    exchanges, and why, it left. From these an error can tell who is missing.
    """

    def __init__(self, rank: int, size: int, timeout: float):
        self.rank, self.size, self.timeout = rank, size, timeout
        self._exchanges = 0  # what workers are told of
        self._sums = 0  # with the one of `broadcast`
        self._broadcasts = False
        self._gathered = 0
        self._failed = self._closed = False
        # Before the backend takes down what carries the notes.
        atexit.register(self._at_exit)

    # ---- What an engine defines -----------------------------------------------------------------

    def _put(self, key: str, text: str) -> None:
        raise NotImplementedError

    def _get(self, key: str, seconds: float) -> str | None:
        """The text of a note that there is within some seconds, or None."""
        raise NotImplementedError

    def _remove(self, key: str) -> None:
        raise NotImplementedError

    def _sum_on_host(self, integers: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _disconnect(self) -> None:
        """Closes what carries tensors, but not yet what carries notes."""

    def _shut_down(self) -> None:
        """Closes what carries notes."""

    # ---- When an optimizer is built -------------------------------------------------------------

    def broadcast(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        integers = flat.packed(arrays)
        if not integers.size:
            return list(arrays)
        # With zeros from all others, a sum of integers has the very bits of worker 0.
        mine = integers if self.rank == 0 else np.zeros_like(integers)
        self._broadcasts = True
        try:
            return flat.unpacked(self._sum_on_host(mine), arrays)
        finally:
            self._broadcasts = False

    def gather(self, text: str) -> list[str]:
        self._gathered += 1
        name, deadline = f"text/{self._gathered}", time.monotonic() + self.timeout
        self._note(f"{name}/{self.rank}", text)
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        return [self._wait_for(key, keys, deadline, "building its optimizer") for key in keys]

    # ---- Before and after exchanges -------------------------------------------------------------

    def _count(self) -> str:
        """Counts the sum that comes next; says what it is."""
        self._sums += 1
        if self._broadcasts:
            return "sending the initial weights"
        self._exchanges += 1
        return f"exchange {self._exchanges}"

    def _meet(self) -> None:
        """Waits until all workers are about to exchange: a sum could not say who is missing."""
        what = self._count()
        number, deadline = self._sums, time.monotonic() + self.timeout
        keys = [f"here/{number}/{rank}" for rank in range(self.size)]
        self._note(keys[self.rank], "+")
        for key in keys[1:] if self.rank == 0 else [f"go/{number}"]:
            self._wait_for(key, keys, deadline, what)
        if self.rank == 0:
            self._note(f"go/{number}", "+")
        # All are here, so nobody still looks for what was before.
        for old in (f"here/{number - 1}/{self.rank}", f"go/{number - 1}"):
            if number > 1 and (self.rank == 0 or old.startswith("here")):
                self._remove(old)

    def _fault(self, what: str, cause: BaseException) -> RuntimeError:
        """What to raise where an exchange failed that workers did not meet for before."""
        number, deadline = self._sums, time.monotonic() + AFTER_A_FAULT
        keys = [f"here/{number}/{rank}" for rank in range(self.size)]
        try:
            self._note(keys[self.rank], "+")
            for key in keys:
                self._wait_for(key, keys, deadline, what, str(cause))
            gone = self._gone()
        except RuntimeError as error:
            return error
        if gone:
            return self._error(self._explained(what, [], gone, ""))
        return self._error(f"{what} failed, though all workers came to it: {cause}")

    def _note(self, key: str, text: str) -> None:
        try:
            self._put(key, text)
        except Exception as error:
            raise self._nowhere(error) from error

    def _wait_for(
        self, key: str, keys: list[str], deadline: float, what: str, cause: str = ""
    ) -> str:
        """The text of a note; `keys` are those that all workers leave for the same purpose."""
        try:
            while True:
                left = deadline - time.monotonic()
                text = self._get(key, min(LOOK, max(left, 0.0)))
                if text is not None:
                    return text
                gone = self._gone()
                if not gone and left > 0:
                    continue
                text = self._get(key, 0.0)
                if text is not None:
                    return text
                others = [(rank, k) for rank, k in enumerate(keys) if rank != self.rank]
                missing = [rank for rank, k in others if self._get(k, 0.0) is None]
                break
        except Exception as error:
            raise self._nowhere(error) from error
        raise self._error(self._explained(what, missing, gone, cause))

    def _gone(self) -> dict[int, dict[str, Any]]:
        """What those workers said that have left."""
        notes = {r: self._get(f"left/{r}", 0.0) for r in range(self.size) if r != self.rank}
        return {rank: json.loads(note) for rank, note in notes.items() if note is not None}

    def _explained(
        self, what: str, missing: list[int], gone: dict[int, dict[str, Any]], cause: str
    ) -> str:
        for rank, note in gone.items():
            if note["error"]:
                return f"{what} is impossible: worker {rank} has ended with {note['error']}"
        for rank, note in gone.items():
            return (
                f"{what} is impossible: worker {rank} has left after {note['exchanges']} "
                "exchanges. Unequal numbers of steps: give all workers the same number of batches "
                "in an epoch (`steps_per_epoch`, or data of the same size) and of epochs"
            )
        if cause:
            return (
                f"{what} failed, and {_workers(missing)} did not answer after that. It has died, "
                f"or took longer than the {self.timeout:g} s that `timeout` of "
                f"keras_tfopt.distributed.connect allows: see its own output. ({cause})"
            )
        return (
            f"{what} is impossible: {_workers(missing)} did not come within the {self.timeout:g} s "
            "that `timeout` of keras_tfopt.distributed.connect allows. It has died, or it stalls, "
            "or its steps take longer than that: see its own output"
        )

    def _nowhere(self, cause: Exception) -> RuntimeError:
        return self._error(
            "notes between the workers cannot be read. The process that keeps them, which is "
            f"worker 0 or its launcher, has died. ({type(cause).__name__}: {cause})"
        )

    def _error(self, text: str) -> RuntimeError:
        self._failed = True
        after = self._ending()
        return RuntimeError(f"Worker {self.rank} of {self.size}: {text}{after}")

    def _ending(self) -> str:
        """What else there is to know of how this process is going to end."""
        return ""

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
        note = {"exchanges": self._exchanges, "error": reason}
        failed = self._failed or error is not None
        deadline = time.monotonic() + (min(self.timeout, AFTER_A_FAULT) if failed else self.timeout)
        try:
            self._put(f"left/{self.rank}", json.dumps(note))
            self._disconnect()
            # Notes are with worker 0: the others may still want to read why somebody left.
            others: Iterable[int] = range(1, self.size) if self.rank == 0 else ()
            for rank in others:
                self._get(f"left/{rank}", max(0.0, deadline - time.monotonic()))
            self._shut_down()
        except Exception as fault:
            if not failed:
                print(f"Worker {self.rank} could not say that it leaves: {fault}", file=sys.stderr)


def _workers(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks))}"
