"""Rewrite a program for Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import libcst as cst
import libcst.matchers as m
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor
from libcst.metadata import MetadataWrapper

from keras_tfopt.legacy.table import TABLE
from keras_tfopt.migrate.code import arguments
from keras_tfopt.migrate.code.names import (
    GONE,
    LEGACY_CLASSES,
    Found,
    advice,
    find,
    is_base_class,
    takes_config,
)
from keras_tfopt.migrate.code.reading import Finding
from keras_tfopt.migrate.code.recognizing import Recognizer
from keras_tfopt.migrate.code.survey import (
    SETTING,
    Survey,
    code_of,
    dotted,
    is_rate,
    keywords,
    sets_rate,
    survey,
)

_OLD_KEYS = "Keras 3 takes `learning_rate`, and a schedule in the place of `decay`"
_METHODS_OF_RULES = (
    "_create_slots",
    "_apply_dense",
    "_apply_sparse",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "get_updates",
)
_SCHEDULES = "keras.optimizers.schedules"
# Parts of this package that are imported by themselves.
_PARTS = ("keras_tfopt.addons", "keras_tfopt.legacy")
# Methods that optimizers of TensorFlow 1 have as well.
_OF_TF1 = ("get_slot", "minimize")
_RENAMED = {"lr": "learning_rate", "weights": "variables", "_create_all_weights": "build"}


class Rewritten(NamedTuple):
    """A program after the change, and what is left to do."""

    code: bytes
    findings: list[Finding]


def rewrite(source: bytes) -> Rewritten:
    """Return a program for Keras 3.

    Raises:
        libcst.ParserSyntaxError: if it cannot be parsed.
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    context = CodemodContext(wrapper=wrapper)
    rewriter = _Rewriter(context, survey(wrapper))
    tree = wrapper.visit(rewriter)
    tree = AddImportsVisitor(context).transform_module(tree)
    tree = RemoveImportsVisitor(context).transform_module(tree)
    return Rewritten(tree.bytes, sorted(set(rewriter.findings)))


class _Rewriter(Recognizer):
    def __init__(self, context: CodemodContext, seen: Survey):
        super().__init__(context, seen)
        self._not_names: set[int] = set()
        self._parts: set[int] = set()  # of longer names
        self._called: set[int] = set()
        self._statements: set[int] = set()
        self._told: set[int] = set()  # dictionaries

    # ---- Names ----------------------------------------------------------------------------------

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._not_names.add(id(node.attr))
        self._parts.add(id(node.value))

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self._not_names.add(id(node.keyword))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        if id(original_node) in self._not_names:
            return updated_node
        return self._replaced(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        name = original_node.attr.value
        if name == "lr" and self.has_name_of_optimizer(original_node.value):
            return _with_new_name(updated_node)
        is_known = self.is_optimizer(original_node.value)
        if is_known or self.has_name_of_optimizer(original_node.value) and name not in _OF_TF1:
            if name in _RENAMED:
                return _with_new_name(updated_node)
            if name in GONE and not self.has_tf1:
                self.tell(original_node, GONE[name])
        if name == "get_scaled_loss":
            return updated_node.with_changes(attr=cst.Name("scale_loss"))
        if name == "get_unscaled_gradients":
            self.tell(
                original_node,
                "in Keras 3, `apply_gradients` divides gradients by the scale: pass them as they "
                "are, and clip by arguments of the optimizer",
            )
        return self._replaced(original_node, updated_node)

    def _replaced(self, original: Any, updated: Any) -> Any:
        name = self.full_name(original)
        if name is None:
            return updated
        found = find(name, self.has_verbs)
        if found is not None and found.family == "module" and id(original) in self._parts:
            return updated
        if found is None:
            text = advice(name, self.has_verbs)
            if text is not None:
                self.tell(original, text)
            return updated
        if found.family == "legacy" and id(original) not in self._called:
            needed = [f"{n}={value}" for n, value in LEGACY_CLASSES[found.name][1].items()]
            if needed:
                self.tell(original, f"calls of this class need {', '.join(needed)}")
        if found.family == "tf1" and not self.has_verbs and id(original) not in self._called:
            self.tell(
                original,
                "calls of this class need other arguments: see "
                f"`python -m keras_tfopt info {found.name}`",
            )
        if found.new is None:
            return updated
        parts = [part for part in _PARTS if f"{found.new}.".startswith(f"{part}.")]
        needs = parts[0] if parts else found.new.split(".")[0]
        self.need(needs)
        self.forget_import(original)
        new = cst.parse_expression(found.new)
        return new.with_changes(lpar=updated.lpar, rpar=updated.rpar)

    # ---- Calls ----------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        self._called.add(id(self._class_called(node)))
        if takes_config(self.full_name(node.func) or ""):
            configs = m.findall(node, m.Dict())
            self._told.update(map(id, configs))
            self._tell_of_old_keys(node, *configs)
        if dotted(node.func).endswith("load_model"):
            self.need_addons()

    def _class_called(self, node: cst.Call) -> Any:
        """Return what a call makes an instance of, itself or by `functools.partial`."""
        is_partial = node.args and self.full_name(node.func) == "functools.partial"
        return node.args[0].value if is_partial else node.func

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        called = self._class_called(original_node)
        name = self.full_name(called)
        found = find(name, self.has_verbs) if name else None
        if found is not None and called is original_node.func:
            args = self._arguments(found, original_node, updated_node.args)
            return updated_node.with_changes(args=args)
        if found is not None:
            return self._partial(found, original_node, updated_node)
        if self.is_method(original_node, "apply_gradients") and not self.has_tf1:
            tell = functools.partial(self.tell, original_node)
            args = arguments.of_apply_gradients(updated_node.args, tell)
            return updated_node.with_changes(args=args)
        if found := self._by_string(original_node, updated_node):
            return found
        if self.is_class(original_node.func) and keywords(original_node.args) & {"lr", "decay"}:
            self.tell(original_node, _OLD_KEYS)
        if self.is_method(original_node, "variables") and not (self.has_tf1 or original_node.args):
            return updated_node.func
        if self.is_method(original_node, "get_weights"):
            owner = code_of(updated_node.func.value)  # type: ignore[attr-defined]
            return cst.parse_expression(f"[v.numpy() for v in {owner}.variables]")
        if name is not None and updated_node.args:
            read = self._backend_call(name, original_node, updated_node)
            if read is not None:
                return read
        if _is_float(updated_node) and _is_float(updated_node.args[0].value):
            return updated_node.args[0].value
        return updated_node

    def _backend_call(self, name: str, original: cst.Call, updated: cst.Call) -> Any:
        """Return what replaces a call of `keras.backend` about an optimizer, or None."""
        target: Any = updated.args[0].value
        verb = name.rpartition("backend.")[2] if "backend." in name else None
        is_own = isinstance(target, cst.Attribute) and self.is_optimizer(target.value)
        counts = {"get_value": 1, "eval": 1, **dict.fromkeys(SETTING, 2)}  # of arguments
        if counts.get(verb or "") != len(updated.args) or not (is_own or is_rate(target)):
            return None
        is_variable = is_rate(target) or target.attr.value == "iterations"
        if not is_variable:
            self.tell(original, f"Keras 3 has no `backend.{verb}`: this may be a number there")
        if not is_variable or verb in SETTING and id(original) in self._statements:
            return None
        self.forget_import(original.func)
        if verb in SETTING:
            value = code_of(updated.args[1].value)
            return cst.parse_expression(f"{code_of(_with_new_name(target))}.assign({value})")
        kind = "float" if is_rate(target) else "int"
        return cst.parse_expression(f"{kind}({code_of(_with_new_name(target))})")

    def _by_string(self, original: cst.Call, updated: cst.Call) -> Any:
        """Return `getattr(optimizer, "lr")` and the like with the name of Keras 3, or None."""
        names = m.OneOf(*[m.SimpleString(f"{quote}lr{quote}") for quote in ("'", '"')])
        function = m.OneOf(m.Name("getattr"), m.Name("hasattr"), m.Name("setattr"))
        call = m.Call(function, [m.Arg(), m.Arg(names), m.ZeroOrMore()])
        if not (m.matches(original, call) and self.is_optimizer(original.args[0].value)):
            return None
        second = updated.args[1].with_changes(value=cst.SimpleString('"learning_rate"'))
        return updated.with_changes(args=[updated.args[0], second, *updated.args[2:]])

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        """Tell of `optimizer.get_config()["lr"]`."""
        config = original_node.value
        if isinstance(config, cst.Call) and self.is_method(config, "get_config"):
            self._tell_of_old_keys(original_node, *original_node.slice)
        return updated_node

    def visit_Dict(self, node: cst.Dict) -> None:
        """Tell of `{"class_name": "Adam", "config": {"lr": 0.1}}`, which `compile` takes, too."""
        parts = {
            one.key.evaluated_value: one.value
            for one in node.elements
            if isinstance(one, cst.DictElement) and isinstance(one.key, cst.SimpleString)
        }
        name = parts.get("class_name")
        if isinstance(name, cst.SimpleString) and "config" in parts and id(node) not in self._told:
            if find(f"keras.optimizers.{name.raw_value}", self.has_verbs) is not None:
                self._tell_of_old_keys(node, parts["config"])

    def _tell_of_old_keys(self, call: Any, *parts: Any) -> None:
        """Tell of arguments of Keras 2 in what describes an optimizer."""
        strings = [one for part in parts for one in m.findall(part, m.SimpleString())]
        if {one.evaluated_value for one in strings} & {"lr", "decay"}:  # type: ignore[attr-defined]
            self.tell(call, _OLD_KEYS)

    def _partial(self, found: Found, original: cst.Call, updated: cst.Call) -> cst.Call:
        """Return a call of `functools.partial`, with arguments of Keras 3."""
        cls, *given = updated.args
        args = self._arguments(found, original, given)
        if "learning_rate" in keywords(args) and not keywords(given) & {"lr", "learning_rate"}:
            self.tell(
                original, "the learning rate is written here: calls of this must not pass another"
            )
        if args:
            cls = cls.with_changes(comma=arguments.COMMA)
        return updated.with_changes(args=[cls, *args])

    def visit_Expr(self, node: cst.Expr) -> None:
        self._statements.add(id(node.value))

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        """Rewrite `K.set_value(model.optimizer.lr, rate)`, which Keras 3 does not have."""
        call, new = original_node.value, cast(Any, updated_node.value)
        if not isinstance(call, cst.Call):
            return updated_node
        if not sets_rate(call, filter(None, [self.full_name(call.func)])):
            return updated_node
        target, value = _with_new_name(new.args[0].value), new.args[1].value
        if "\n" in code_of(value) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        self.forget_import(call.func)
        return cst.Assign([cst.AssignTarget(target)], value, semicolon=updated_node.semicolon)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        """Tell of optimizers of one's own as they were written in Keras 2."""
        names = [name for base in node.bases if (name := self.full_name(base.value))]
        if any(map(is_base_class, names)):
            self.tell(
                node,
                "optimizers of your own derive from another class in Keras 3: write a "
                "keras_tfopt.Rule",
            )
        if any(name.endswith(".DecoupledWeightDecayExtension") for name in names):
            self.tell(
                node,
                "keras_tfopt.addons.DecoupledWeightDecayExtension is no base class: call "
                "keras_tfopt.addons.extend_with_decoupled_weight_decay(base)",
            )
        found = [find(name, self.has_verbs) for name in names]
        if not any(one is not None and one.family in ("keras", "legacy") for one in found):
            return
        of_super = m.Attribute(m.Call(m.Name("super")), m.Name("__init__"))
        for call in m.findall(node, m.Call(of_super)):
            if keywords(call.args) & {"lr", "decay"}:  # type: ignore[attr-defined]
                self.tell(call, _OLD_KEYS)
        for method in m.findall(node, m.FunctionDef()):
            name = method.name.value  # type: ignore[attr-defined]
            if name in _METHODS_OF_RULES:
                self.tell(method, f"Keras 3 does not call `{name}`: write a keras_tfopt.Rule")

    def _arguments(
        self, found: Found, original: cst.Call, given: Sequence[cst.Arg]
    ) -> list[cst.Arg]:
        args, tell = list(given), functools.partial(self.tell, original)
        if found.family == "legacy":
            args = arguments.of_legacy(found.name, args, _SCHEDULES, tell)
        elif found.family == "keras":
            schedules = self._schedules(self._class_called(original), found)
            args = arguments.of_keras(found.name, args, schedules, tell)
            decays = "decay" in keywords(given) - keywords(args)
            if decays and self.survey.sets_rates and any("Decay(" in code_of(a) for a in args):
                tell(
                    "`decay` has become a schedule, and the program sets a learning rate: that of "
                    "this optimizer can no longer be set"
                )
        elif found.family == "addons":
            args = arguments.of_addons(args)
        elif found.family == "tf1" and found.new is None:
            ours = TABLE[found.name].ours
            tell(f"write keras_tfopt.{ours}, whose arguments differ, or keras_tfopt.legacy")
        elif found.family == "tf1" and not self.has_verbs:
            args = arguments.of_tf1(found.name, args, tell)
        if any(code_of(arg.value).startswith(f"{_SCHEDULES}.") for arg in args):
            self.need("keras")
        return args

    def _schedules(self, func: Any, found: Found) -> str:
        """Return how this program writes `keras.optimizers.schedules`."""
        if found.new is None and isinstance(func, cst.Attribute):
            return f"{code_of(func.value)}.schedules"
        return _SCHEDULES


def _with_new_name(attribute: Any) -> Any:
    """Return an attribute of an optimizer by its name in Keras 3."""
    name = attribute.attr.value
    return attribute.with_changes(attr=cst.Name(_RENAMED.get(name, name)))


def _is_float(node: Any) -> bool:
    return m.matches(node, m.Call(func=m.Name("float"), args=[m.Arg()]))
