"""Docstrings are Markdown with sections of Google's style; autodoc wants reStructuredText."""

import re

from integration.documentation import names

# Sections of one paragraph that begins behind the colon; napoleon knows the others.
FACTS = (
    "Slots",
    "Row gradients",
    "References?",
    "Differences(?: from Keras)?",
    "Differs from the original",
    "Half precision",
    "Files",
    "Input shape",
)
EXAMPLE = re.compile(r"^Example:\n+(?=>>>)", re.M)
LISTS = ("Class attributes", "Hooks")  # of a name and a description each
BLOCKS = re.compile(r"^( *)\$\$(.+?)\$\$", re.M | re.S)
FENCES = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)
CODE = re.compile(r"``.+?``|`[^`]+`", re.S)
FORMULA = re.compile(r"(?<![\w$\\`])\$([^$\n]+(?:\n[^$\n]+)?)\$(?![\w$])")


def indented(text, by):
    return "".join(f"{by}{line.strip()}\n" for line in text.strip().splitlines())


def restructured(text):
    """Return a docstring as reStructuredText."""
    kept = []

    def keep(made):
        kept.append(made)
        return f"\0{len(kept) - 1}\0"

    def fence(found):
        by, language, code = found.groups()
        lines = "".join(f"    {line}\n" for line in code.splitlines())
        return keep(f"{by}.. code-block:: {language or 'text'}\n\n{lines}\n")

    def code(found):
        if names.is_public(found[0].strip("`")):
            return keep(f":py:obj:{found[0]}")
        ends_in_word = found.string[found.end() : found.end() + 1].isalnum()
        return keep(f"``{found[0].strip('`')}``" + "\\ " * ends_in_word)

    def block(found):
        by, formula = found.groups()
        return keep(f"\n{by}.. math::\n    :nowrap:\n\n{indented(formula, by + '    ')}\n")

    def formula(found):
        return keep(f":math:`{' '.join(found[1].split())}`")

    text = EXAMPLE.sub("**Example.**\n\n", text)
    for pattern, made in ((FENCES, fence), (BLOCKS, block), (CODE, code), (FORMULA, formula)):
        text = pattern.sub(made, text)
    text = re.sub(r"\[([^]\n]+)\]\((https?:[^)]+)\)", r"`\1 <\2>`__", text)
    text = re.sub(r"(?<=\w)\*\*(?=\w)|(?<!\S)(\*{1,2})(?=\w+[:,)])", r"\\\g<0>", text)
    text = re.sub(rf"^({'|'.join(FACTS)}):(?= )", r"**\1.**", text, flags=re.M)
    while "\0" in text:  # code may stand in a formula
        text = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], text)
    return text


def process(app, what, name, item, options, lines):
    if not getattr(item, "__module__", "keras_tfopt").startswith("keras_tfopt"):
        return  # inherited from Keras
    lines[:] = restructured("\n".join(lines)).split("\n")


def setup(app):
    app.setup_extension("sphinx.ext.napoleon")
    app.config.napoleon_custom_sections = [(name, "params_style") for name in LISTS]
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
