"""The names of the originals as data, read from `originals.ini`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_tfopt import tables
from keras_tfopt.tables import REQUIRED as REQUIRED

# Originals refuse positive values of these. Of other arguments that they check, they refuse values
# <= 0.
POSITIVE_IS_WRONG = frozenset({"learning_rate_power"})

# Originals do not check these. Here they must be >= 0, since they are in quotients and roots.
AT_LEAST_ZERO = frozenset({"epsilon", "eps", "svd_eps", "sigma_eps"})

# Accepted, without meaning here: steps of one optimizer never overlap, and state is placed with its
# variable.
WITHOUT_MEANING = frozenset({"use_locking", "colocate_clip_ops_with_vars"})


@dataclasses.dataclass(frozen=True)
class Row(tables.Row):
    """One class or function of an original. `originals.ini` says what the fields mean."""

    slots: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()
    slot_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    powers: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    counts: bool = False
    scopes: bool = False
    unnamed: bool = False
    checked: tuple[str, ...] = ()
    verbs: str = "rule"
    extends: str | None = None

    def default_base(self, name: str) -> str:
        """Return the default name of slots in files, for the class `name`."""
        return self.arguments.get("name", name) or name


_sections = tables.read_sections(__package__)
_paths = [path.rpartition(".") for path in _sections.sections() if "." in path]
NAMES = {
    name: tables.row_of(Row, source, _sections[f"{source}.{name}"]) for source, _, name in _paths
}
MEANINGS = dict(_sections["arguments"])  # of arguments, in words
TABLE = {name: row for name, row in NAMES.items() if row.signature.parameters}
