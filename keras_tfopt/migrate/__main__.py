"""Rewrite programs of Keras 2, TensorFlow Addons and TensorFlow 1 from a shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """Rewrite optimizers of Keras 2, TensorFlow Addons and TensorFlow 1 for Keras 3.

Prints what it cannot decide as FILE:LINE, with what to do. Nothing is written without --write;
lines are those of the written file then.
"""
EPILOG = """Exit status: 0 if nothing is left to do, 1 if there are changes that are not written or
something that cannot be decided, 2 if a file cannot be read; then nothing is written."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_tfopt.migrate", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("path", nargs="+", type=Path, help="programs, or folders with programs")
    parser.add_argument("--write", action="store_true", help="write the changes into the files")
    parser.add_argument("--diff", action="store_true", help="print the changes as a unified diff")
    options = parser.parse_args(arguments)
    try:
        from keras_tfopt.migrate.code import programs
    except ImportError as error:
        if error.name != "libcst":
            raise
        print("This needs LibCST: `pip install 'keras_tfopt[migrate]'`", file=sys.stderr)
        return 2
    try:
        files = programs.files_in(options.path)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    found, unreadable = [], False
    for path in files:
        try:
            found.append(programs.read(path))
        except programs.Unreadable as error:
            print(error, file=sys.stderr)
            unreadable = True
    return _report(found, options.write and not unreadable, options.diff, unreadable)


def _report(found: list, write: bool, diff: bool, unreadable: bool) -> int:
    changed = [program for program in found if program.changes]
    for program in found:
        for line, text in program.findings_after() if write else program.findings:
            print(f"{program.path}:{line}: {text}")
    for program in changed:
        if diff:
            print(program.diff(), end="")
        if write:
            program.path.write_bytes(program.new)
    left = sum(len(program.findings) for program in found)
    done = "rewritten" if write else "to be rewritten"
    print(f"{len(changed)} of {len(found)} files {done}, {left} places to decide", file=sys.stderr)
    if unreadable:
        return 2
    return 1 if left or (changed and not write) else 0


if __name__ == "__main__":
    sys.exit(main())
