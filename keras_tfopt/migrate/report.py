"""What became of each tensor of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A tensor of a file, and what became of it."""

    tensor: str
    shape: tuple[int, ...]
    became: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What `load_state` did. Its text is a table, and the notes.

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
        lines = [Row("tensor", (), "became"), *self.rows]
        shapes = ["shape", *(str(row.shape) for row in self.rows)]
        widths = max(len(row.tensor) for row in lines), max(map(len, shapes))
        table = [
            f"{row.tensor:{widths[0]}}  {shape:{widths[1]}}  {row.became}"
            for row, shape in zip(lines, shapes, strict=True)
        ]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"{self.file}: {self.source}", *table, *notes])
