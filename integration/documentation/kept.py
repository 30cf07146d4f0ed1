"""Pictures that one build of the documentation keeps for the next, in build/pictures.

The pictures of an optimizer are drawn again when their key changes: the code that they come from,
and the versions of the libraries that compute and draw.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import keras_tfopt
from integration.documentation import runs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "pictures"
LIBRARIES = ("jax", "jaxlib", "keras", "matplotlib", "numpy", "scikit-learn")


@functools.cache
def _imported(path: Path) -> frozenset[Path]:
    """Files of the package that a file names in its imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {node.module or "", *names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    ours = [ROOT / name.replace(".", "/") for name in modules if name.startswith("keras_tfopt.")]
    files = [file for place in ours for file in (place.with_suffix(".py"), place / "__init__.py")]
    return frozenset(file for file in files if file.exists())


def sources(name: str) -> list[Path]:
    """The files that decide how the pictures of an optimizer look."""
    open_files = {Path(inspect.getfile(runs)), Path(__file__).with_name("pictures.py")}
    found = {*open_files, *(ROOT / "keras_tfopt" / "engine").rglob("*.py")}
    for drawn in (name, runs.compared_with(name)):
        classes = keras_tfopt.info(drawn).optimizer_class.__mro__
        ours = [cls for cls in classes if cls.__module__.startswith("keras_tfopt.")]
        open_files = {Path(inspect.getfile(cls)) for cls in ours}
        while open_files:
            found |= open_files
            open_files = {other for file in open_files for other in _imported(file)} - found
    return sorted(found)


def key(name: str) -> str:
    """Return a word that stays the same while the pictures of an optimizer do."""
    content = hashlib.sha256()
    for library in LIBRARIES:
        content.update(f"{library} {metadata.version(library)}\n".encode())
    for path in sources(name):
        content.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def pictures(name: str, draw: Callable[[str, Path], dict[str, Any]], folder: Path) -> Any:
    """Copy the pictures of an optimizer into a folder; return the facts that `draw` returned.

    `draw(name, folder)` is called where the kept pictures are not those of the present code.
    """
    kept = FOLDER / f"{name}-{key(name)}"
    if not kept.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=FOLDER))
        (made / "facts.json").write_text(json.dumps(draw(name, made)), "utf-8")
        for old in FOLDER.glob(f"{name}-{'?' * 16}"):
            shutil.rmtree(old)
        os.replace(made, kept)
    folder.mkdir(parents=True, exist_ok=True)
    for picture in kept.glob("*.svg"):
        target = folder / picture.name
        if not target.exists() or target.read_bytes() != picture.read_bytes():
            shutil.copyfile(picture, target)
    return json.loads((kept / "facts.json").read_text("utf-8"))
