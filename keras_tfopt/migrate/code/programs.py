"""Read programs in files and folders, with their rewritten form and what is left to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import libcst as cst

from keras_tfopt.migrate.code.reading import Finding
from keras_tfopt.migrate.code.rewriting import rewrite


class Program(NamedTuple):
    """A file before and after the change."""

    path: Path
    old: bytes
    new: bytes
    findings: list[Finding]

    @property
    def changes(self) -> bool:
        """Whether anything is rewritten."""
        return self.old != self.new

    def lines(self) -> tuple[list[str], list[str]]:
        """Return the lines before and after the change, with their ends."""
        texts = (code.decode("utf-8", "replace") for code in (self.old, self.new))
        old, new = (text.splitlines(keepends=True) for text in texts)
        return old, new

    def findings_after(self) -> list[Finding]:
        """Return the findings with the numbers that their lines have after the change."""
        changes = difflib.SequenceMatcher(None, *self.lines(), autojunk=False).get_opcodes()
        numbers: dict[int, int] = {}
        for _, start, end, first, last in changes:
            # Where fewer lines replace others, the last of them stands for the rest.
            numbers |= {n: min(first + n - start, max(first, last - 1)) for n in range(start, end)}
        return [Finding(numbers[line - 1] + 1, text) for line, text in self.findings]

    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = self.lines()
        name = self.path.as_posix().lstrip("/")
        return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


class Unreadable(ValueError):
    """A file that is no program."""


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Return the programs in files and folders, without those in hidden folders.

    Raises:
        FileNotFoundError: if a path does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.py"))
            parts = [(file, file.relative_to(path).parts[:-1]) for file in inside]
            found += [file for file, names in parts if not any(n.startswith(".") for n in names)]
        elif path.exists():
            found.append(path)
        else:
            raise FileNotFoundError(f"There is nothing at {path}")
    return list(dict.fromkeys(found))


def read(path: Path) -> Program:
    """Read a file and rewrite it.

    Raises:
        Unreadable: if it is no program; the message has the line.
    """
    old = path.read_bytes()
    try:
        new, findings = rewrite(old)
    except cst.ParserSyntaxError as error:
        raise Unreadable(
            f"{path}:{error.raw_line}:{error.raw_column}: cannot be parsed: {error.message}"
        ) from error
    except (UnicodeDecodeError, LookupError) as error:
        raise Unreadable(f"{path}: cannot be read: {error}") from error
    return Program(path, old, new, findings)
