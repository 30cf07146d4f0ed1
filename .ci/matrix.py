"""The matrix of optimizers and invariants, from the reports that test runs have left.

    python .ci/matrix.py [REPORT.xml...]

Reports are those in build/test-results/, one for each part of a run on a backend. What a test is
about stands in its report (see tests/cells.py): an invariant, an optimizer, and whether the steps
were made operation by operation or compiled. Prints for each invariant and for each optimizer how
many cells there are and what became of them, and writes build/matrix.md, which has every cell.
The exit status is 0 only if there are cells and no test of any has failed.
"""

import collections
import string
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
OUT = ROOT / "build" / "matrix.md"
MODES = ("eager", "compiled", "")  # the last: tests that have no mode, or more than one
# From what a cell comes to if any of its tests does, to what it comes to if all do.
FAILED, PASSED, SKIPPED = "F", "+", "-"
ABSENT = "."  # no such test, or in a run that is not exhaustive: left to another backend


class Matrix:
    def __init__(self):
        self.tests = collections.Counter()  # {(backend, outcome): number}
        self.outcomes = collections.defaultdict(set)  # {(backend, invariant, optimizer, mode): ..}
        self.reasons = collections.defaultdict(set)  # {(backend, invariant): reasons of skips}

    def read(self, report):
        backend = report.stem.split("-")[0]
        for test in ElementTree.parse(report).iter("testcase"):
            facts = {p.get("name"): p.get("value") for p in test.iter("property")}
            if "invariant" not in facts:
                continue
            outcome = outcome_of(test)
            where = backend, facts["invariant"], facts["optimizer"], facts["mode"]
            self.outcomes[where].add(outcome)
            self.tests[backend, outcome] += 1
            if outcome == SKIPPED:
                self.reasons[where[:2]].add(test.find("skipped").get("message"))

    def axis(self, number):
        return list(dict.fromkeys(where[number] for where in self.outcomes))

    @property
    def backends(self):
        return sorted(self.axis(0), reverse=True)

    @property
    def invariants(self):
        return sorted(self.axis(1))

    @property
    def optimizers(self):
        return sorted(self.axis(2))

    def cell(self, *where):
        """What became of it: (backend, invariant, optimizer, mode)."""
        found = self.outcomes.get(where, {ABSENT})
        return next(o for o in (FAILED, PASSED, SKIPPED, ABSENT) if o in found)

    def count(self, **chosen):
        """How many cells came to what, of a backend, an invariant and so on."""
        names = "backend", "invariant", "optimizer", "mode"
        return collections.Counter(
            self.cell(*where)
            for where in self.outcomes
            if all(chosen.get(n, here) == here for n, here in zip(names, where, strict=True))
        )


def outcome_of(test):
    tags = {child.tag for child in test}
    if tags & {"failure", "error"}:
        return FAILED
    return SKIPPED if "skipped" in tags else PASSED


def in_words(count):
    """Cells that passed, of those that apply; nothing if there are none."""
    applying = count[PASSED] + count[FAILED]
    if not applying:
        return SKIPPED if count[SKIPPED] else ABSENT
    return f"{count[PASSED]}" if not count[FAILED] else f"{count[PASSED]}/{applying}"


def table(rows):
    """Lines of Markdown, which is also readable as it is."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in each)
        + " |"
        for each in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    rule = "|-" + "-|-".join("-" * w for w in widths) + "-|"
    return [lines[0], rule, *lines[1:]]


def by_invariant(matrix):
    """A row for each invariant, and the reasons of what does not apply, each with its letter."""
    letters = {}
    rows = [["invariant", *(f"{b} {m}".strip() for b in matrix.backends for m in MODES)]]
    for invariant in matrix.invariants:
        row = [invariant]
        for backend in matrix.backends:
            notes = ""
            for reason in sorted(matrix.reasons.get((backend, invariant), ())):
                notes += f" ({letters.setdefault(reason, letter(len(letters)))})"
            for mode in MODES:
                count = matrix.count(backend=backend, invariant=invariant, mode=mode)
                row.append(in_words(count) + (notes if count[SKIPPED] else ""))
        rows.append(row)
    totals = [in_words(matrix.count(backend=b, mode=m)) for b in matrix.backends for m in MODES]
    rows.append(["all", *totals])
    return [*table(rows), "", *(f"({sign}) {reason}" for reason, sign in letters.items())]


def letter(number):
    most = len(string.ascii_lowercase)
    return string.ascii_lowercase[number % most] * (number // most + 1)


def by_optimizer(matrix):
    rows = [["optimizer", *(f"{b} {m}".strip() for b in matrix.backends for m in MODES)]]
    for optimizer in matrix.optimizers:
        counts = [
            matrix.count(backend=b, optimizer=optimizer, mode=m)
            for b in matrix.backends
            for m in MODES
        ]
        rows.append([optimizer, *map(in_words, counts)])
    return table(rows)


def every_cell(matrix, backend):
    """A row for each optimizer: for each invariant three signs, one for each of MODES."""
    width = max(map(len, matrix.optimizers))
    numbers = [f"{n:<3}" for n, _ in enumerate(matrix.invariants, start=1)]
    lines = [" ".join([" " * width, *numbers])]
    for optimizer in matrix.optimizers:
        cells = [
            "".join(matrix.cell(backend, invariant, optimizer, mode) for mode in MODES)
            for invariant in matrix.invariants
        ]
        lines.append(" ".join([optimizer.ljust(width), *cells]))
    return lines


def totals(matrix):
    lines = [f"{len(matrix.optimizers)} optimizers x {len(matrix.invariants)} invariants"]
    for backend in [*matrix.backends, None]:
        count = matrix.count(**({"backend": backend} if backend else {}))
        tests = collections.Counter()
        for (where, outcome), number in matrix.tests.items():
            if backend in (where, None):
                tests[outcome] += number
        lines.append(
            f"{backend or 'all':<10} {count[PASSED]:>6} cells passed {count[FAILED]:>4} failed "
            f"{count[SKIPPED]:>5} do not apply, by {tests.total():>6} tests"
        )
    pairs = collections.defaultdict(set)
    for where in matrix.outcomes:
        pairs[where[1:3]].add(matrix.cell(*where))
    lines.append(
        f"{len(pairs)} pairs of an optimizer and an invariant, "
        f"{sum(PASSED in found for found in pairs.values())} of them passed on some backend, "
        f"{sum(FAILED in found for found in pairs.values())} failed on some"
    )
    return lines


def summary(reports):
    """Prints the matrix and writes all of it; returns how many cells have failed, or None."""
    matrix = Matrix()
    for report in reports:
        matrix.read(report)
    if not matrix.outcomes:
        print("no report in which there are cells")
        return None
    short = [
        "# Optimizers and invariants",
        "",
        "Cells that passed, by backend and by how steps are made (the third column of a backend: "
        "tests without a mode of their own, or with several). A fraction has failures, "
        f"`{SKIPPED}` does not apply, for the reason given below, and of `{ABSENT}` there is none.",
        "",
        *by_invariant(matrix),
        "",
        *by_optimizer(matrix),
        "",
        *totals(matrix),
    ]
    print("\n".join(short))
    long = [
        "",
        f"Every cell: {FAILED} failed, {PASSED} passed, {SKIPPED} does not apply. Three signs: of "
        "eager steps, of compiled steps, and of tests without a mode.",
    ]
    for backend in matrix.backends:
        long += ["", f"## {backend}", "", "```text", *every_cell(matrix, backend), "```"]
    legend = [f"{n}. {invariant}" for n, invariant in enumerate(matrix.invariants, start=1)]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join([*short, *long, "", *legend, ""]), encoding="utf-8")
    print(f"Every cell: {OUT.relative_to(ROOT)}")
    return matrix.count()[FAILED]


def main():
    reports = [Path(name) for name in sys.argv[1:]] or sorted(RESULTS.glob("*.xml"))
    return 0 if summary(reports) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
