"""What names in a program mean, which imports it needs, and what to tell its author."""

from __future__ import annotations

from typing import Any, NamedTuple

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor
from libcst.metadata import PositionProvider, QualifiedNameProvider

from keras_tfopt.migrate.code.names import find
from keras_tfopt.migrate.code.survey import dotted, imported

# Modules that cannot be installed together with Keras 3.
_GONE = ("tensorflow.contrib", "tensorflow_addons")
# Names that `import *` may hide.
_AMONG_OTHERS = (
    *("SGD", "LAMB", "AdamOptimizer", "optimizers.SGD", "optimizers.LAMB"),
    *("keras.optimizers.SGD", "train.AdamOptimizer"),
)


class Finding(NamedTuple):
    """Something that cannot be decided: the line, and what to do."""

    line: int
    text: str


class Reader(cst.CSTTransformer):
    """A visitor that knows what a program imports.

    Args:
        context: Notes of the imports to add and to remove.
        has_verbs: Whether the program trains as one of TensorFlow 1.
    """

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, context: CodemodContext, has_verbs: bool):
        super().__init__()
        self.context, self.has_verbs = context, has_verbs
        self.findings: list[Finding] = []
        # For each import: module, name, the name after `as`, and the name in this program.
        self._imports: list[tuple[str, str | None, str | None, str]] = []

    def visit_Import(self, node: cst.Import) -> bool:
        """Note the names of modules."""
        for alias in node.names:
            module = dotted(alias.name)
            asname = alias.evaluated_alias
            self._note_import(module, None, asname, asname or module.split(".")[0])
            if module.split(".")[0] == "tf_keras":
                self.tell(
                    node, "tf_keras is Keras 2: import keras in its place, and run this again"
                )
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Note the names from a module."""
        if node.module is not None and not isinstance(node.names, cst.ImportStar):
            module = dotted(node.module)
            for alias in node.names:
                name, asname = alias.evaluated_name, alias.evaluated_alias
                self._note_import(module, name, asname, asname or name)
        elif node.module is not None:
            names = [f"{dotted(node.module)}.{name}" for name in _AMONG_OTHERS]
            if any(find(name, self.has_verbs) for name in names):
                self.tell(node, "`import *` hides which names are used: import them one by one")
        return False

    def _note_import(self, module: str, name: str | None, asname: str | None, local: str) -> None:
        self._imports.append((module, name, asname, local))
        if module.startswith(_GONE):  # the import alone would fail
            RemoveImportsVisitor.remove_unused_import(self.context, module, name, asname)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Register the classes of TensorFlow Addons that a program names as Keras saves them."""
        if "Addons>" in node.value:
            self.need_addons()

    def need_addons(self) -> None:
        """Import the classes that a file may name, in a program that imports TensorFlow Addons."""
        if any(module.startswith("tensorflow_addons") for module, *_ in self._imports):
            self.need("keras_tfopt.addons")

    def full_name(self, node: Any) -> str | None:
        """Return the full name of something imported, or None if it was not imported."""
        found = imported(self, node)
        if len(found) < 2:
            return found[0] if found else None
        # After `try: from ... except ImportError: from ...`, a name has several full names.
        kinds = {one and one[:2] for one in (find(name, self.has_verbs) for name in found)}
        if len(kinds) > 1:
            self.tell(node, f"this may be {' or '.join(found)}: import it in one way")
        return None if len(kinds) > 1 else found[0]

    def forget_import(self, node: Any) -> None:
        """Remove the import of a name if nothing else uses it."""
        root = node
        while isinstance(root, cst.Attribute):
            root = root.value
        for module, name, asname, local in self._imports:
            if local == root.value:
                RemoveImportsVisitor.remove_unused_import(self.context, module, name, asname)

    def need(self, module: str) -> None:
        """Import a module, unless its name is taken, as by `from tensorflow import keras`."""
        if module not in [local for *_, local in self._imports]:
            AddImportsVisitor.add_needed_import(self.context, module)

    def tell(self, node: Any, text: str) -> None:
        """Add a finding about a part of the program."""
        position = self.get_metadata(PositionProvider, node)
        self.findings.append(Finding(position.start.line, text))
