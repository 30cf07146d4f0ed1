"""The report on each tensor of a checkpoint and on each variable, in words."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from keras_tfopt.engine.inspection import aligned

Status = Literal[
    "restored",
    "missing",
    "unused",
    "shape mismatch",
    "dtype mismatch",
    "inconsistent",
    "not needed",
]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, or one variable for which it has no tensor.

    Attributes:
        name: Name in the checkpoint, None if the checkpoint lacks it.
        target: Its place here, in words: `"dense/kernel"`, `"slot m of dense/kernel"`.
        status: `"restored"`; `"missing"`, if the checkpoint lacks it; `"unused"`, if it has no
            place here; `"shape mismatch"`, `"dtype mismatch"`; `"inconsistent"`, if it is a power
            of another decay rate than this optimizer's; `"not needed"`, if nothing is lost without
            it.
        shape: Its shape.
        detail: A remark, or "".
    """

    name: str | None
    target: str | None
    status: Status
    shape: tuple[int, ...] | None = None
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of `load_checkpoint` on each tensor and variable. Printed, it is a table.

    Attributes:
        prefix: Path of the checkpoint.
        entries: All tensors and variables.
        steps: The numbers of steps in the checkpoint, by the names of their tensors: the training
            step, and what follows from powers of decay rates.
        iterations: The number of steps from which the optimizer continues; None if it stays. For a
            list of optimizers, the list of theirs.
        notes: Remarks on the checkpoint as a whole.
    """

    prefix: str
    entries: tuple[Entry, ...]
    steps: Mapping[str, int]
    iterations: int | None | list[int | None]
    notes: tuple[str, ...] = ()

    @property
    def global_step(self) -> int | None:
        """The training step of the checkpoint, None if it has none."""
        found = [n for name, n in self.steps.items() if name.split("/")[-1] == "global_step"]
        return found[0] if found else None

    @property
    def problems(self) -> list[Entry]:
        """The entries for which `strict` raises."""
        return [entry for entry in self.entries if entry.status not in ("restored", "not needed")]

    def of(self, status: str) -> list[Entry]:
        """Return the entries of one status."""
        return [entry for entry in self.entries if entry.status == status]

    def __str__(self) -> str:
        rows = [("", "in the checkpoint", "shape", "here", "")]
        for e in self.entries:
            shape = "" if e.shape is None else str(e.shape)
            rows.append((e.status, e.name or "-", shape, e.target or "-", e.detail))
        counts = collections.Counter(e.status for e in self.entries)
        summary = ", ".join(f"{count} {status}" for status, count in counts.items())
        return "\n".join([self.prefix, *table(rows), summary or "nothing", *self.notes])


def joined(reports: Iterable[Report]) -> Report:
    """Join the reports on several optimizers that are restored from one checkpoint."""
    reports = list(reports)
    idle = ("unused", "not needed")
    entries = dict.fromkeys(entry for report in reports for entry in report.entries)
    used = {entry.name for entry in entries if entry.status not in idle}
    return Report(
        reports[0].prefix,
        tuple(e for e in entries if e.status not in idle or e.name not in used),
        {name: steps for report in reports for name, steps in report.steps.items()},
        [report.iterations for report in reports],  # type: ignore[misc]
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


class CheckpointMismatch(ValueError):
    """The error for a checkpoint that does not fit. Nothing has been changed.

    Attributes:
        report: The `Report`.
    """

    def __init__(self, report: Report):
        self.report = report
        first = " ".join(report.notes[:1])
        super().__init__(
            f"The checkpoint {report.prefix!r} does not fit: {len(report.problems)} of "
            f"{len(report.entries)} entries. {first}{' ' if first else ''}Nothing has been "
            "changed. `name_map` says what is called otherwise, and leaves out what it maps to "
            f"None; `strict=False` restores what fits.\n{report}"
        )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return indented lines with columns of equal width."""
    return [f"  {line}" for line in aligned(rows)]
