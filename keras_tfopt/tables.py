"""Read tables of original names: sections of a file, with signatures as text."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple, TypeVar

# Stands for the default of an argument that has none.
REQUIRED = inspect.Parameter.empty


class Counterpart(NamedTuple):
    """The counterpart of an original name.

    Attributes:
        source: Module of the original.
        maps_to: Name of the class or function of this package with the same numbers.
        differs: What differs, in words.
    """

    source: str
    maps_to: str
    differs: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One class or function of an original. The file of the table explains the fields."""

    source: str = ""
    ours: str = ""
    signature: inspect.Signature = inspect.Signature()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    differs: str = ""

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor with their defaults, in the original order."""
        parameters = list(self.signature.parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind != p.VAR_KEYWORD}

    @property
    def counterpart(self) -> Counterpart:
        """Return the entry of `names()` for this row."""
        return Counterpart(self.source, f"keras_tfopt.{self.ours}", self.differs or "nothing")


AnyRow = TypeVar("AnyRow", bound=Row)


def in_words_of(row: Row, message: str) -> str:
    """Replace our names of arguments in a message by those of the original."""
    for theirs, ours in row.renamed.items():
        message = message.replace(f"`{ours}`", f"`{theirs}`")
    return message


def names_in(rows: Mapping[str, Row]) -> dict[str, Counterpart]:
    """Return the counterpart of every original name, in alphabetical order."""
    return {name: rows[name].counterpart for name in sorted(rows, key=str.lower)}


def as_constructor(name: str, signature: inspect.Signature, function: Callable) -> Callable:
    """Give a function the names and the signature of the constructor of class `name`."""
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__name__ = "__init__"
    function.__qualname__ = f"{name}.__init__"
    return function


def read_sections(package: str) -> configparser.ConfigParser:
    """Read `originals.ini` of a package, where `${section:key}` stands for another text."""
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=(";",),
        interpolation=configparser.ExtendedInterpolation(),
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((resources.files(package) / "originals.ini").read_text("utf-8"))
    return parser


def row_of(cls: type[AnyRow], source: str, section: Mapping[str, str]) -> AnyRow:
    """Read a section into a row. The types of its fields decide how texts are read."""
    texts = {key: " ".join(text.split()) for key, text in section.items()}
    if "arguments" in texts:
        texts["signature"] = texts.pop("arguments")
    types = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {
        key: _READERS.get(types[key], str)(text) for key, text in texts.items()
    }
    return cls(source, **values)


def _signature(text: str) -> inspect.Signature:
    """Read the signature of a method as Python writes it; defaults are literals."""
    given = ast.parse(f"lambda self, {text}: 0", mode="eval").body.args  # type: ignore[attr-defined]
    required = [None] * (len(given.args) - len(given.defaults))
    parameters = []
    for arguments, defaults, kind in (
        (given.args, required + given.defaults, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        (given.kwonlyargs, given.kw_defaults, inspect.Parameter.KEYWORD_ONLY),
    ):
        for argument, node in zip(arguments, defaults, strict=True):
            default = REQUIRED if node is None else ast.literal_eval(node)
            parameters.append(inspect.Parameter(argument.arg, kind, default=default))
    if given.kwarg is not None:
        parameters.append(inspect.Parameter(given.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


_READERS: dict[str, Callable[[str], Any]] = {
    "Mapping[str, str]": lambda text: dict(pair.split("=") for pair in text.split()),
    "tuple[str, ...]": lambda text: tuple(text.split()),
    "bool": lambda text: text == "yes",
    "inspect.Signature": _signature,
}
