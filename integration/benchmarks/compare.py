"""Compare what benchmarks measure of two revisions: `python -m integration.benchmarks.compare A B`.

A and B are revisions of git, "." for the working tree, or folders with files that benchmarks have
written. Of revisions, the benchmarks run by turns, some times each; how long each run took is
printed as it ends. A number counts as slower or faster where all of B's are on one side of all of
A's, and the medians differ by more than 3 %.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARGIN = 0.03
Measured = dict[str, list[float]]


def read(folder: Path) -> Measured:
    """Return the numbers of all files of a folder, by what they are of."""
    found: Measured = collections.defaultdict(list)
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        backend = content.get("machine", {}).get("backend", "")
        for name, number in content.get("measured", {}).items():
            found[f"{backend}: {name}"].append(number)
    return found


def verdict(old: list[float], new: list[float]) -> str:
    """Return whether numbers are larger or smaller than others by more than their spread."""
    change = statistics.median(new) / statistics.median(old) - 1
    if change > MARGIN and min(new) > max(old):
        return "slower"
    return "faster" if change < -MARGIN and max(new) < min(old) else ""


def table(old: Measured, new: Measured) -> tuple[str, int]:
    """Return the comparison as Markdown, and how many numbers have become slower."""
    rows, slower = [], 0
    for name in [name for name in old if name in new]:
        a, b = old[name], new[name]
        cells = [f"{statistics.median(v):.3g} ({min(v):.3g}, {max(v):.3g})" for v in (a, b)]
        change = statistics.median(b) / statistics.median(a)
        said = verdict(a, b)
        slower += said == "slower"
        rows.append(f"| {name} | {cells[0]} | {cells[1]} | {change:.2f} | {said} |")
    head = "| measured | A (min, max) | B (min, max) | B / A | |\n|---|---|---|---|---|"
    return "\n".join([head, *rows]), slower


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Give a folder that has a revision of the project."""
    if revision == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run(tree: Path, benchmark: str, out: Path, arguments: list[str]) -> None:
    """Run a benchmark of the revision in a folder."""
    command = [sys.executable, "-m", f"integration.benchmarks.{benchmark}", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run([*command, *arguments], cwd=tree, env=env, check=True, stdout=subprocess.DEVNULL)


def measure(a: str, b: str, benchmarks: list[str], repeats: int, arguments: list[str]) -> tuple:
    """Return the numbers of two revisions, which are measured by turns."""
    with (
        checked_out(a) as first,
        checked_out(b) as second,
        tempfile.TemporaryDirectory() as folder,
    ):
        sides = [(first, Path(folder) / "a"), (second, Path(folder) / "b")]
        for turn in range(repeats):
            for tree, out in sides if turn % 2 == 0 else sides[::-1]:
                for benchmark in benchmarks:
                    start = time.monotonic()
                    run(tree, benchmark, out / str(turn), arguments)
                    seconds = time.monotonic() - start
                    ended = f"{benchmark} of {out.name.upper()} took {seconds:.0f} s"
                    print(f"Turn {turn + 1} of {repeats}: {ended}", file=sys.stderr, flush=True)
        return tuple(read(out) for _, out in sides)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", metavar="A", help="a revision, `.`, or a folder of results")
    parser.add_argument("b", metavar="B", help="the same, which is compared with A")
    parser.add_argument("--benchmarks", nargs="+", default=["dense"], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each revision, at least 1")
    options, arguments = parser.parse_known_args()  # others are for the benchmarks
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1. Received: {options.repeats}")
    sides = [Path(side) for side in (options.a, options.b)]
    if all(side.is_dir() and side != Path(".") for side in sides):
        old, new = map(read, sides)
    else:
        old, new = measure(options.a, options.b, options.benchmarks, options.repeats, arguments)
    if not set(old) & set(new):
        parser.error("A and B have no numbers in common")
    text, slower = table(old, new)
    print(text)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
