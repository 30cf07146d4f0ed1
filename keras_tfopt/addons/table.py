"""The optimizers of TensorFlow Addons as data, read from `originals.ini`."""

from __future__ import annotations

import dataclasses

from keras_tfopt import tables

SOURCE = "tensorflow_addons.optimizers"


@dataclasses.dataclass(frozen=True)
class Row(tables.Row):
    """One class or function of the original. `originals.ini` says what the fields mean."""

    example: str = ""


_sections = tables.read_sections(__package__)
NAMES = {name: tables.row_of(Row, SOURCE, _sections[name]) for name in _sections.sections()}
TABLE = {name: row for name, row in NAMES.items() if row.signature.parameters}
