"""Check the English of pages, guides and docstrings: proselint's rules, and some of ours.

    python .ci/prose.py [FILE...]

Code, formulas, addresses and HTML are left out. Without files, all of the project's are read.
"""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

from proselint import checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckResult, types
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parent.parent
# `typography` wants curly quotes and signs that no keyboard has; the other is a joke.
CHECKS = {"weasel_words.very": False, **DEFAULT["checks"], "typography": False, "ours": True}
MADE = ("guides/optimizers.md",)  # of docstrings, by a program
LONGEST = 36  # words of a sentence

# What English of today says instead.
PLAIN = {
    "except for": [r"save for", r"but for"],
    "whether or not": [r"be it", r"be they", r"be \w+ (?:\w+ ){1,3}or not"],
    "instead of": [r"in the place of", r"in lieu of"],
    "forever": [r"for ever"],
    "there is no": [r"there is not any"],
    "in which, to which": [r"wherein", r"whereto", r"thereof", r"therein", r"whence"],
    "about": [r"as regards", r"in regard to", r"with regard to"],
    "because": [r"for the reason that", r"owing to the fact that", r"due to the fact that"],
    "to": [r"in order to", r"so as to"],
    "if": [r"in the event that", r"in case that"],
}
CODE = re.compile(
    r"^( *)(`{3,}|:{3,}).*?^\1\2$"  # blocks
    r"|(`+)(?!`).+?(?<!`)\3(?!`)"  # words
    r"|\$\$.+?\$\$|\$[^$\n]+(?:\n[^$\n]+)?\$"  # formulas
    r"|(?<=\])\([^)\s]+\)|<[^>\n]+>|https?://\S+"
    r"|^ *(?:>>>|\.\.\.).*$"  # examples
    r"|^Example:$|^\s*(?:Title|Author|Date created|Last modified|Accelerator): .*$",
    re.M | re.S,
)
# Where a sentence ends: at a stop, an empty line, the next item of a list, a cell, or a heading.
END = re.compile(r"[.!?:;](?=[\s*\"')\]]|$)|\n\s*\n|\n\s*(?:[-*#]|\d+\.) |\||\n[ ]*\w[\w, *`]*: ")
WORD = re.compile(r"[\w'’/.,-]*\w")


NAMES = itertools.cycle("bcdfghjk")  # no two in a row are the same


def blanked(found):
    """Keep places and lines; a piece of code counts as a word."""
    text = re.sub(r"\S", " ", found[0])
    return text if "\n" in text or not found[3] else next(NAMES) + text[1:]


def long_sentences(text, check):
    start = 1
    for end in [*END.finditer(text), None]:
        stop = end.start() if end else len(text)
        words = WORD.findall(text[start:stop])
        if len(words) > LONGEST:
            first = start + len(text[start:stop]) - len(text[start:stop].lstrip())
            message = check.message.format(len(words))
            yield CheckResult(check.path, message, (first, stop), None)
        start = end.end() if end else stop


def ours():
    yield Check(long_sentences, path="ours.long", message=f"{{}} words; at most {LONGEST}.")
    for plain, forms in PLAIN.items():
        items = tuple(form.replace(" ", r"\s+") for form in forms)
        yield Check(types.Existence(items), path="ours.plain", message=f"'{{}}': write '{plain}'.")


def strings(text):
    """Keep the docstrings of a module, and the strings of a guide, at their places."""
    lines = text.split("\n")
    kept = [""] * len(lines)
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str):
            rows = slice(node.lineno - 1, node.end_lineno)
            kept[rows] = [re.sub(r'r?"""', "   ", line) for line in lines[rows]]
    return "\n".join(kept)


def read(path):
    text = path.read_text("utf-8")
    return CODE.sub(blanked, text if path.suffix == ".md" else strings(text))


def tracked():
    patterns = ("*.md", "guides/*.py", "keras_tfopt/*.py")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.splitlines() if name not in MADE]
    return [path for path in paths if path.exists()]


def main():
    registry = CheckRegistry()
    registry.register_many((*checks.__register__, *ours()))
    count = 0
    for path in [Path(name).resolve() for name in sys.argv[1:]] or tracked():
        text = read(path)
        for result, (line, column) in LintFile(str(path), text).lint({**DEFAULT, "checks": CHECKS}):
            begin, end = result.span
            words = " ".join(f"\n{text}"[begin:end].split())
            place = f"{path.relative_to(ROOT)}:{line - 1}:{column}"
            print(f"{place}: {result.check_path}: {result.message} ({words:.60})")
            count += 1
    print(f"prose: {count} to rewrite")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
