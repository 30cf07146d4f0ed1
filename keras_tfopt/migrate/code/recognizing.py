"""Recognize optimizers in a program, and classes of them."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.codemod import CodemodContext

from keras_tfopt.migrate.code.assignments import Assignment, assigned
from keras_tfopt.migrate.code.names import find, takes_config
from keras_tfopt.migrate.code.reading import Reader
from keras_tfopt.migrate.code.survey import Survey, code_of

# Attributes of models and of trainers, such as `d_optimizer` of a GAN.
_NAMES = re.compile(r"(?:\w*_)?optimizer")
# What programs name their options, which may have names of optimizers, too.
_OPTIONS = ("args", "cfg", "conf", "config", "hparams", "opts", "params", "settings", "FLAGS")


class Recognizer(Reader):
    """A reader that knows which names of a program are optimizers, and which are their classes.

    Args:
        context: Notes of the imports to add and to remove.
        seen: What kind of program it is.

    Attributes:
        has_tf1: Whether the program has made an optimizer of TensorFlow 1 so far.
    """

    def __init__(self, context: CodemodContext, seen: Survey):
        super().__init__(context, seen.has_verbs)
        self.survey, self.has_tf1 = seen, False
        self._optimizers: set[str] = set()
        self._classes: set[str] = set()  # names for classes of Keras

    def visit_Module(self, node: cst.Module) -> None:
        """See attributes that are optimizers first: methods further up may use them."""
        for assignment in m.findall(node, m.Assign() | m.AnnAssign()):
            self.visit_Assign(assignment)  # type: ignore[arg-type]
        self._optimizers = {name for name in self._optimizers if "." in name}

    def visit_Assign(self, node: Assignment) -> None:
        """Remember the names of optimizers, whose attributes have other names in Keras 3."""
        for target, value in assigned(node):
            call = value.func if isinstance(value, cst.Call) else None
            name = call and self.full_name(call) or ""
            found = find(name.removesuffix(".from_config"), self.has_verbs)
            makes = found is not None and found.family not in ("schedule", "function", "module")
            if makes or takes_config(name) or self.is_optimizer(value):
                self.has_tf1 = self.has_tf1 or found is not None and found.family == "tf1"
                self._optimizers.add(target)
            parts = (
                [one.value for one in value.elements] if isinstance(value, cst.Dict) else [value]
            )
            families = [find(self.full_name(part) or "", self.has_verbs) for part in parts]
            if any(one is not None and one.family == "keras" for one in families):
                self._classes.add(target)

    visit_AnnAssign = visit_NamedExpr = visit_Assign

    def is_optimizer(self, node: Any) -> bool:
        """Return whether it was made as an optimizer, or is an attribute with such a name."""
        if isinstance(node, (cst.Name, cst.Attribute)) and code_of(node) in self._optimizers:
            return True
        if not (isinstance(node, cst.Attribute) and _NAMES.fullmatch(node.attr.value)):
            return False
        return self.survey.uses_keras and code_of(node.value).split(".")[-1] not in _OPTIONS

    def is_class(self, node: Any) -> bool:
        """Return whether it is a class of optimizers that has another name, or is looked up."""
        if m.matches(node, m.Call(m.Name("getattr"), [m.Arg(), m.Arg()])):
            module = self.full_name(node.args[0].value) or ""
            return module in ("keras.optimizers", "tensorflow.keras.optimizers")
        found = node.value if isinstance(node, cst.Subscript) else node
        if m.matches(node, m.Call(m.Attribute(attr=m.Name("get")))):  # of a dictionary
            found = node.func.value
        return isinstance(found, (cst.Name, cst.Attribute)) and code_of(found) in self._classes

    def has_name_of_optimizer(self, node: Any) -> bool:
        """Return whether it is a name, as of an argument, that can only be an optimizer's."""
        is_name = isinstance(node, cst.Name) and node.value.endswith("optimizer")
        return is_name and self.survey.uses_keras

    def is_method(self, node: cst.Call, name: str) -> bool:
        """Return whether a call is one of this method of an optimizer."""
        func: Any = node.func
        is_method = isinstance(func, cst.Attribute) and func.attr.value == name
        return is_method and self.is_optimizer(func.value)
