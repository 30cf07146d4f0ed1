"""The names of the originals as data, read from `originals.ini`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from keras_tfopt.tables import REQUIRED as REQUIRED
from keras_tfopt.tables import mapping_of, read_sections, signature_of

# Where originals check the sign of an argument, it must be positive, but not of these.
POSITIVE_IS_WRONG = frozenset({"learning_rate_power"})

# Originals do not check these. Here they must be >= 0, for quotients and roots.
AT_LEAST_ZERO = frozenset({"epsilon", "eps", "svd_eps", "sigma_eps"})

# Accepted, without meaning here: steps of one optimizer never overlap, and state is placed with its
# variable.
WITHOUT_MEANING = frozenset({"use_locking", "colocate_clip_ops_with_vars"})


@dataclasses.dataclass(frozen=True)
class Row:
    """One class or function of an original. `originals.ini` says what the fields mean."""

    source: str = ""
    ours: str = ""
    signature: inspect.Signature = inspect.Signature()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slots: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()
    slot_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    powers: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    counts: bool = False
    unnamed: bool = False
    checked: tuple[str, ...] = ()
    verbs: str = "rule"
    extends: str | None = None
    differs: str = ""

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor with their defaults, in the original order."""
        return {p.name: p.default for p in list(self.signature.parameters.values())[1:]}

    def default_base(self, name: str) -> str:
        """Return what the class `name` calls its slots in files unless told otherwise."""
        return self.arguments.get("name", name) or name


_READERS = {
    "Mapping[str, str]": mapping_of,
    "tuple[str, ...]": lambda text: tuple(text.split()),
    "bool": lambda text: text == "yes",
    "inspect.Signature": signature_of,
}


def _row(source: str, section: Mapping[str, str]) -> Row:
    texts = {key: " ".join(text.split()) for key, text in section.items()}
    if "arguments" in texts:
        texts["signature"] = texts.pop("arguments")
    types = {field.name: field.type for field in dataclasses.fields(Row)}
    values: dict[str, Any] = {
        key: _READERS.get(str(types[key]), str)(text) for key, text in texts.items()
    }
    return Row(source, **values)


def _read() -> tuple[dict[str, Row], dict[str, str]]:
    """Return the rows by name, and the meanings of arguments."""
    parser = read_sections(__package__, "originals.ini")
    paths = [path.rpartition(".") for path in parser.sections() if "." in path]
    rows = {name: _row(source, parser[f"{source}.{name}"]) for source, _, name in paths}
    return rows, dict(parser["arguments"])


NAMES, MEANINGS = _read()
TABLE = {name: row for name, row in NAMES.items() if row.signature.parameters}
