"""What tables of original names are written in: files of sections, with signatures as text."""

from __future__ import annotations

import ast
import configparser
import inspect
from importlib import resources

# Instead of a default, where an argument has none.
REQUIRED = inspect.Parameter.empty


def read_sections(package: str, file: str) -> configparser.ConfigParser:
    """Return the sections of a file of a package; `${section:key}` stands for another text."""
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=(";",),
        interpolation=configparser.ExtendedInterpolation(),
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((resources.files(package) / file).read_text("utf-8"))
    return parser


def mapping_of(text: str) -> dict[str, str]:
    """Read `theirs=ours` pairs."""
    return dict(pair.split("=") for pair in text.split())


def signature_of(text: str) -> inspect.Signature:
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
