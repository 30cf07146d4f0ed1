"""Guides as notebooks that run by themselves, in Colab or anywhere else."""

import ast
import base64
import io
import zipfile
from pathlib import Path

import nbformat

from integration.guides import TOOLS

GUIDES = Path(__file__).parents[2] / "guides"
INSTALL = "%pip install --quiet keras_tfopt matplotlib mlxtend scikit-learn"
SHOW = """from IPython.display import Image

Image(str(args.out))"""


def cells(path):
    """Return the cells of a guide: its strings are Markdown, the rest is code."""
    text = path.read_text("utf-8")
    lines, found, start = text.splitlines(), [], 0
    for node in ast.parse(text).body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
            found.append(("code", "\n".join(lines[start : node.lineno - 1]).strip("\n")))
            found.append(("markdown", value.value.strip("\n")))
            start = node.end_lineno
    found.append(("code", "\n".join(lines[start:]).strip("\n")))
    return [(kind, body) for kind, body in found if body]


def facts(path):
    """Return the fields at the head of a guide, such as its title."""
    (_, head), *_ = cells(path)
    return dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)


def as_a_script(path):
    """Return what a guide finds where it runs as a script: its name, and no arguments."""
    return f"""import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")
__file__ = os.path.abspath("{path.name}")
sys.argv = [__file__]
sys.path.insert(0, os.getcwd())"""


def unpack(folder):
    """Return code that writes the files of a folder, which it carries in itself."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            entry = zipfile.ZipInfo(f"{folder.name}/{file.name}")  # of a date that stays
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    text = base64.b64encode(packed.getvalue()).decode()
    return f"""import base64
import io
import zipfile

packed = "{text}"
zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))).extractall()"""


def notebook(path):
    """Return the notebook of a guide. It brings all files of ours that the guide uses."""
    head = facts(path)
    found = [("markdown", f"# {head['Title']}\n\n{head['Description']}"), ("code", INSTALL)]
    found.append(("code", as_a_script(path)))
    files = [GUIDES / f"{tool}.py" for tool in sorted(TOOLS)]
    if "[sys.executable, __file__" in path.read_text("utf-8"):  # it starts itself again
        files.append(path)
    for file in files:
        found.append(("code", f"%%writefile {file.name}\n{file.read_text('utf-8')}"))
    if path.with_suffix("").is_dir():
        found.append(("code", unpack(path.with_suffix(""))))
    found += [*cells(path)[1:], ("code", SHOW)]
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    made = nbformat.v4.new_notebook(cells=[make[kind](text) for kind, text in found])
    for number, cell in enumerate(made.cells):
        cell["id"] = str(number)
    return made
