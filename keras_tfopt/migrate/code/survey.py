"""Find out what kind of program it is, before it is rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource

from keras_tfopt.migrate.code.names import find, is_session

_VERBS = ("minimize", "compute_gradients", "get_slot", "get_slot_names", "MonitoredTrainingSession")
_GRADIENTS = re.compile(r"^tensorflow(?:\.compat\.v1)?\.gradients$")
_GLOBAL_STEP = re.compile(r"^tensorflow\..*\.(?:get|create|get_or_create)_global_step$")
SETTING = ("set_value", "update")
"""Functions of `keras.backend` that set a variable."""
_SETTING_RATES = ("ReduceLROnPlateau", "LearningRateScheduler")
_WITH_KERAS = ("keras", "keras_tfopt", "tensorflow", "tensorflow_addons", "tf_keras")


class Survey(NamedTuple):
    """What a program does.

    Attributes:
        has_verbs: Whether it trains by graphs or by `minimize` and other methods of TensorFlow 1.
        uses_keras: Whether it imports Keras or TensorFlow.
        sets_rates: Whether it sets learning rates while it trains.
    """

    has_verbs: bool
    uses_keras: bool
    sets_rates: bool


def survey(program: MetadataWrapper) -> Survey:
    """Return what a program does."""
    surveyor = _Surveyor()
    program.visit(surveyor)
    return Survey(surveyor.has_verbs, surveyor.uses_keras, surveyor.sets_rates)


class _Surveyor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (QualifiedNameProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.has_verbs = self.uses_keras = self.sets_rates = False

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            self._note(dotted(alias.name))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if node.module is None:
            return
        module = dotted(node.module)
        self._note(module)
        if not isinstance(node.names, cst.ImportStar):
            names = [f"{module}.{alias.evaluated_name}" for alias in node.names]
            self.has_verbs |= any(is_session(name) or _extends_classes(name) for name in names)

    def _note(self, module: str) -> None:
        self.uses_keras |= module.split(".")[0] in _WITH_KERAS

    def visit_Attribute(self, node: cst.Attribute) -> None:
        names = imported(self, node)
        self.has_verbs |= any(map(_GLOBAL_STEP.match, names))
        if node.attr.value in (*_VERBS, "Session"):
            # Others, such as SciPy, have a `minimize` as well.
            self.has_verbs |= not names or any(n.startswith("tensorflow") for n in names)
        self.has_verbs |= any(_GRADIENTS.match(n) or _extends_classes(n) for n in names)

    def visit_Call(self, node: cst.Call) -> None:
        names = imported(self, node.func)
        method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
        if method == "apply_gradients":
            by_position = [arg.value for arg in node.args[1:2] if arg.keyword is None]
            has_step = any(not isinstance(one, cst.SimpleString) for one in by_position)
            self.has_verbs |= has_step or "global_step" in keywords(node.args)
        is_callback = any(name.endswith(_SETTING_RATES) for name in names)
        self.sets_rates |= is_callback or sets_rate(node, names)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        target = node.target
        if is_rate(target) and isinstance(target, cst.Attribute):
            self.sets_rates |= code_of(target.value) != "self"

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        names = [name for base in node.bases for name in imported(self, base.value)]
        found = [find(name, False) for name in names]
        self.has_verbs |= any(one is not None and one.family == "tf1" for one in found)


def _extends_classes(name: str) -> bool:
    """Return whether a function takes a class of optimizers, which has to be one with verbs."""
    found = find(name, False)
    return found is not None and found.family == "function" and found.name.startswith("extend")


def imported(visitor: Any, node: Any) -> list[str]:
    """Return the full names that something imported may have, in order."""
    names = visitor.get_metadata(QualifiedNameProvider, node, ()) or ()
    return sorted(n.name for n in names if n.source == QualifiedNameSource.IMPORT)


def dotted(node: Any) -> str:
    """Return the name of a module."""
    return code_of(node).replace(" ", "")


def keywords(args: Iterable[cst.Arg]) -> set[str]:
    """Return the names of arguments that are passed by name."""
    return {arg.keyword.value for arg in args if arg.keyword is not None}


def is_rate(node: Any) -> bool:
    """Return whether it is an attribute with the name of a learning rate."""
    return isinstance(node, cst.Attribute) and node.attr.value in ("lr", "learning_rate")


def sets_rate(call: cst.Call, names: Iterable[str]) -> bool:
    """Return whether a call of something with these names is `K.set_value` of a learning rate."""
    setting = tuple(f"backend.{name}" for name in SETTING)
    is_meant = any(name.endswith(setting) for name in names)
    return is_meant and len(call.args) == 2 and is_rate(call.args[0].value)


def code_of(node: Any) -> str:
    """Return a part of a program as text."""
    return cst.Module([]).code_for_node(node)
