"""The optimizers of TensorFlow Addons as data, read from `originals.ini`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from keras_tfopt.tables import mapping_of, read_sections, signature_of

SOURCE = "tensorflow_addons.optimizers"


@dataclasses.dataclass(frozen=True)
class Row:
    """One class or function of the original. `originals.ini` says what the fields mean."""

    signature: inspect.Signature = inspect.Signature()
    ours: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    differs: str = ""
    example: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor with their defaults, in the original order."""
        parameters = list(self.signature.parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind != p.VAR_KEYWORD}


def _row(section: Mapping[str, str]) -> Row:
    texts = {key: " ".join(text.split()) for key, text in section.items()}
    return Row(
        signature_of(texts["arguments"]) if "arguments" in texts else inspect.Signature(),
        texts["ours"],
        mapping_of(texts.get("renamed", "")),
        texts.get("differs", ""),
        texts.get("example", ""),
    )


_sections = read_sections(__package__, "originals.ini")
NAMES = {name: _row(_sections[name]) for name in _sections.sections()}
TABLE = {name: row for name, row in NAMES.items() if row.signature.parameters}
