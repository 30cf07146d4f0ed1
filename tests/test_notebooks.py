"""Notebooks of guides have all their code, and run in an empty folder, as in Colab."""

import ast
import sys

import keras
import pytest

from integration import guides
from integration.guides import names
from tests.helpers.programs import AS_USERS, ROOT, output_of
from tests.test_site import extension

pytest.importorskip("nbformat")
pytestmark = pytest.mark.backends("jax", reason="one backend is enough")

GUIDES = ROOT / "guides"


def notebook(guide, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "extensions")
    return extension("notebooks").notebook(GUIDES / f"{guide}.py")


def program(made):
    """Return a program that runs the code cells of a notebook as Jupyter does."""
    lines = ["import pathlib, sys"]
    for cell in made.cells:
        first, _, rest = cell.source.partition("\n")
        if cell.cell_type != "code" or first.startswith("%pip"):
            continue
        if first.startswith("%%writefile "):
            lines.append(f"pathlib.Path({first.split()[1]!r}).write_text({rest!r}, 'utf-8')")
        elif "IPython" not in cell.source:
            lines.append(cell.source)
        if "sys.argv = " in cell.source:
            lines.append("sys.argv.append('--fast')")
    return "\n".join(lines)


@pytest.mark.parametrize("guide", names())
def test_a_notebook_has_the_code_of_its_guide_and_all_its_files(guide, monkeypatch, tmp_path):
    made, script = notebook(guide, monkeypatch), (GUIDES / f"{guide}.py").read_text("utf-8")
    # Strings are the text of the guide.
    statements = [
        ast.unparse(node)
        for node in ast.parse(script).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    in_notebook = [ast.unparse(node) for node in ast.parse(program(made)).body]
    start = in_notebook.index(statements[0], in_notebook.index("sys.path.insert(0, os.getcwd())"))
    brought = [line for line in in_notebook[start:] if line in statements]
    assert brought == statements
    # What comes before writes the files.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    exec("\n".join(in_notebook[:start]), {})
    files = [GUIDES / "data.py", GUIDES / "report.py", *(GUIDES / guide).glob("*")]
    if guide in ("less_memory", "switching", "workers"):  # which start themselves again
        files.append(GUIDES / f"{guide}.py")
    assert contents(tmp_path.rglob("*.*"), tmp_path) == contents(files, GUIDES)


def contents(files, folder):
    return {file.relative_to(folder): file.read_bytes() for file in files}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("guide", ["from_addons", "switching"])
def test_a_notebook_runs_in_an_empty_folder(guide, monkeypatch, tmp_path):
    """The first one has files of its own. The second one starts itself again."""
    source = program(notebook(guide, monkeypatch))
    text = output_of("-c", source, cwd=tmp_path, hidden=(), **AS_USERS)
    assert "Traceback" not in text and list((tmp_path / "output").glob(f"{guide}-*.png"))


def test_kept_results_say_where_they_are_from(tmp_path, monkeypatch):
    """They name versions and cores, and no paths of this machine."""
    results, kept = tmp_path / "results", tmp_path / "kept"
    monkeypatch.setattr(guides, "RESULTS", results)
    monkeypatch.setattr(guides, "KEPT", kept)
    results.mkdir()
    lines = ["loss 0.5", f"read {guides.ROOT}/data.txt", "", f"Curves: {results}/some.png"]
    (results / "some.txt").write_text("\n".join(lines))
    (results / "some.png").write_bytes(b"picture")
    guides.keep("some", "keras")
    head, *rest = (kept / "some.txt").read_text().splitlines()
    assert rest == ["", "loss 0.5", "read data.txt"]
    assert f"keras {keras.__version__}" in head and "cores" in head
    assert (kept / "some.png").read_bytes() == b"picture"
