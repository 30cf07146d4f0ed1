"""The report of `load_state`, which says what became of each tensor of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from keras_tfopt.engine.inspection import aligned


class Row(NamedTuple):
    """A tensor of a file and what became of it."""

    tensor: str
    shape: tuple[int, ...]
    became: str


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of `load_state`. Printed, it is a table with notes.

    Attributes:
        file: The file.
        source: The program and the class that wrote it.
        rows: What became of each tensor.
        notes: What differs between the optimizer and the one in the file, and other advice.
    """

    file: str
    source: str
    rows: Sequence[Row]
    notes: Sequence[str]

    def __str__(self) -> str:
        """Return the table and the notes."""
        rows = [(row.tensor, str(row.shape), row.became) for row in self.rows]
        table = aligned([("tensor", "shape", "became"), *rows])
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"{self.file}: {self.source}", *table, *notes])
