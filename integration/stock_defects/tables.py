"""Findings as tables: of one backend as text, of several in Markdown."""

import keras

from integration.stock_defects.findings import BACKEND, BACKENDS, Finding


def _table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def report(findings: list[Finding]) -> str:
    header = ["", "defect", "measured", "right", f"stock Keras {keras.__version__}", "keras_tfopt"]
    rows = [
        [
            f.number,
            f.defect,
            f.measured,
            "" if f.stock is None else _expected(f),
            f.describe_stock(),
            "" if f.stock is None else f.describe_ours(),
        ]
        for f in findings
    ]
    return f"backend {BACKEND}\n{_table(header, rows)}"


def _expected(finding: Finding) -> str:
    return f"{finding.expected:.4g}" + (
        f" (up to {finding.expected + finding.tolerance:g})" if finding.tolerance >= 1 else ""
    )


def markdown(by_backend: dict[str, list[Finding]]) -> str:
    """One line per defect over all backends: whose optimizers have it, with the worst of ours."""
    columns = [f"Keras {keras.__version__}, {BACKENDS[name]}" for name in by_backend]
    lines = [
        "| | defect | measured | right | " + " | ".join(columns) + " | keras_tfopt |",
        "|" + "---|" * (len(columns) + 5),
    ]
    for findings in zip(*by_backend.values(), strict=True):
        first = findings[0]
        here = [f for f in findings if f.stock is not None]
        wrong = [f for f in here if not f.ours_is_right]
        shown = [str(f.ours) for f in wrong or here]
        mine = ("**has it**: " if wrong else "") + ", ".join(dict.fromkeys(shown))
        cells = [_stock_cell(f) for f in findings]
        expected = _expected(here[0]) if here else ""
        lines.append(
            f"| {first.number} | {first.defect} | {first.measured} | {expected} | "
            + " | ".join(cells)
            + f" | {mine} |"
        )
    lines += ["", "Bold: wrong. –: where there can be no such defect."]
    return "\n".join(lines)


def _stock_cell(finding: Finding) -> str:
    if finding.stock is None:
        return "–"
    text = str(finding.stock).replace("|", "\\|")
    return f"**{text}**" if finding.stock_has_it else text
