"""Docstrings as HTML: prose as Markdown, formulas as MathML, sections as lists of definitions."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import markdown as markdown_library
from latex2mathml.converter import convert

# Sections of a name and a description each.
LISTS = ("Args", "Attributes", "Class attributes", "Hooks", "Raises")
# Sections of one paragraph.
FACTS = (
    "Slots",
    "Row gradients",
    "Reference",
    "References",
    "Differences",
    "Differences from Keras",
    "Differs from the original",
    "Half precision",
    "Files",
    "Input shape",
    "Returns",
)
_FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_IN_TEXT = re.compile(r"(?<![\w$\\`])\$([^$\n]+(?:\n[^$\n]+)?)\$(?![\w$])")
_CODE = re.compile(r"^```.*?^```|`[^`]+`", re.MULTILINE | re.DOTALL)


def of(item: Any) -> str:
    """The docstring of an object as HTML."""
    return html(inspect.getdoc(item) or "")


def html(text: str) -> str:
    """A docstring, dedented, as HTML."""
    return "\n".join(_section(title, body) for title, body in sections(text))


def sections(text: str) -> list[tuple[str, str]]:
    """Title and body of each section; text outside of them has no title."""
    known = "|".join((*LISTS, *FACTS, "Example"))
    found: list[tuple[str, str]] = []
    pieces = re.split(rf"(?:^|\n\n)(?=(?:{known}):)", text)
    for piece in pieces:
        title = re.match(rf"({known}):", piece)
        if title is None:
            found.append(("", piece))
            continue
        # A section ends with its paragraph, or where indented or quoted lines end.
        body = piece[title.end() :]
        indented = title[1] in LISTS or title[1] in ("Example", "Returns")
        end = re.search(r"\n\n(?! |>>>|```)" if indented else r"\n\n", body.lstrip("\n"))
        start = len(body) - len(body.lstrip("\n"))
        cut = len(body) if end is None else start + end.start()
        found.append((title[1], body[:cut].strip("\n")))
        if body[cut:].strip():
            found.append(("", body[cut:].strip("\n")))
    return [(title, body) for title, body in found if body.strip()]


def _section(title: str, body: str) -> str:
    if not title:
        return markdown(body)
    if title in LISTS:
        return f"<h2>{title}</h2>\n{_definitions(textwrap.dedent(body))}"
    if title == "Example":
        return f"<h2>{title}</h2>\n{_example(body.strip())}"
    body = textwrap.dedent(body) if body.startswith(" " * 4) else body.strip()
    body = body[0].upper() + body[1:]  # in a docstring, it goes on after a colon
    return f'<section class="fact"><h2>{title}</h2>\n{markdown(body.strip())}</section>'


def _definitions(body: str) -> str:
    """`name: text`, or `name, name: text`, with lines of the text indented."""
    entries = re.findall(
        r"^(\*{0,2}[\w.]+(?:, \w+)*):((?:.*\n?)(?:[ ]+.*\n?|\n(?=[ ]))*)", body, re.M
    )
    if not entries:
        return markdown(body)
    cells = []
    for name, text in entries:
        first, _, rest = text.partition("\n")
        text = f"{first.strip()}\n{textwrap.dedent(rest)}"
        cells.append(f"<dt><code>{name}</code></dt>\n<dd>{markdown(text.strip())}</dd>")
    return "<dl>\n" + "\n".join(cells) + "\n</dl>"


def _example(body: str) -> str:
    if not body.startswith(">>>"):
        return markdown(textwrap.dedent(body))
    lines = body.splitlines()
    if all(line.startswith((">>>", "...")) for line in lines):  # nothing printed: no prompts
        lines = [line[4:] for line in lines]
    return markdown("```python\n" + "\n".join(lines) + "\n```")


def markdown(text: str) -> str:
    """Markdown with formulas, as HTML."""
    kept: list[str] = []

    def keep(html_of_it: str) -> str:
        kept.append(html_of_it)
        return f"KEPT{len(kept) - 1}KEPT"

    # Code before formulas in the text, so that a dollar in it stays one; it goes back before
    # Markdown is read.
    code: list[str] = []

    def put_away(match: re.Match) -> str:
        code.append(match[0])
        return f"CODE{len(code) - 1}CODE"

    text = _FORMULA.sub(lambda m: f"\n\n{keep(mathml(m[1], 'block'))}\n\n", text)
    text = _CODE.sub(put_away, text)
    text = _IN_TEXT.sub(lambda m: keep(mathml(m[1], "inline")), text)
    text = re.sub(r"CODE(\d+)CODE", lambda m: code[int(m[1])], text)
    made = markdown_library.markdown(text, extensions=["fenced_code", "tables", "sane_lists"])
    made = re.sub(r"<p>\s*(KEPT\d+KEPT)\s*</p>", r"\1", made)
    return re.sub(r"KEPT(\d+)KEPT", lambda m: kept[int(m[1])], made)


def mathml(latex: str, display: str) -> str:
    """A formula; the converter has `align*` for `aligned`, and no typewriter face."""
    latex = re.sub(r"\{aligned\}", "{align*}", latex.strip().replace("`", ""))
    latex = re.sub(
        r"\\texttt\{((?:[^{}]|\\_)*)\}",
        lambda m: r"\text{" + m[1].replace(r"\_", "_") + "}",
        latex,
    )
    made = convert(latex, display=display)
    # An empty element in front of a relation only makes space that the column has anyway.
    made = made.replace("<mi />", "")
    return f'<div class="formula">{made}</div>' if display == "block" else made
