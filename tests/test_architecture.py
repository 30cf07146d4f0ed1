"""The shape of the package: who may import what, and what a rule file may contain.

Read from the source with `ast`, so that a wrong import fails here even where it would work.
"""

import ast
import functools
import inspect
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import CASES, every_case, every_rule, keras_options
from tests.reference import Reference
from tests.stepping import BACKEND, MODES, Rows, Runner

PACKAGE = pathlib.Path(keras_tfopt.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Rules and wrappers; files of helpers, which define no class, may stand beside them.
RULES = [f for f in FILES if f.parent.name in ("rules", "wrappers") and "\nclass " in f.read_text()]
RULES += [f for f in FILES if f.parent.name == "distributed" and "\n@register" in f.read_text()]
BACKENDS = {"tensorflow", "jax", "jaxlib", "torch"}
HOOKS = {"update", "before", "after", "accept", "accept_step", "receive", "takes_part"}
PURE = HOOKS | {"slots", "scalars", "facts", "reach", "average", "send", "alone", "counts"}


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


every_file = pytest.mark.parametrize("path", FILES, ids=relative)
every_rule_file = pytest.mark.parametrize("path", RULES, ids=relative)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path):
    """The part of the package that a file belongs to: `execution`, `algorithm`, ..."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path):
    """Dotted names of everything imported anywhere in a file, `from a import b` as a.b."""
    names = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{relative(path)}: relative import, write the full name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_there_is_something_to_check():
    assert len(RULES) >= 4
    assert {"execution", "rule", "rules", "__init__"} <= {part_of(f) for f in FILES}


@every_file
def test_only_execution_imports_what_keras_keeps_private(path):
    """What else is imported where, import-linter checks: see pyproject.toml."""
    if part_of(path) != "execution":
        assert not [name for name in imports(path) if name.startswith("keras.src")]


@functools.cache
def private_names():
    """Underscore names of Keras's own optimizers, methods and attributes."""
    optimizer = keras.optimizers.SGD(0.1)
    names = {name for name in dir(optimizer) if name.startswith("_") and not name.endswith("__")}
    assert "_backend_update_step" in names and "_learning_rate" in names
    return names


@every_file
def test_only_execution_touches_private_names_of_keras(path):
    if part_of(path) == "execution":
        return
    for node in ast.walk(tree_of(path)):
        name = getattr(node, "attr", None) or getattr(node, "name", None)
        if isinstance(node, ast.Attribute | ast.FunctionDef):
            assert name not in private_names(), f"{relative(path)}:{node.lineno} {name}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in private_names(), f"{relative(path)}:{node.lineno}"


@every_rule_file
def test_a_rule_file_is_short(path):
    """Its code: what an optimizer of many arguments has to say of them does not count."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    for node in ast.walk(tree_of(path)):
        documented = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Module))
        if documented and ast.get_docstring(node):
            text = node.body[0]
            lines -= text.end_lineno - text.lineno + 1
    assert lines <= 140  # Shampoo has twelve arguments


@every_rule_file
def test_a_rule_is_pure(path):
    """What it computes with assigns no attribute, no item and no variable."""
    classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    functions = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]
    bases = {getattr(base, "id", None) for c in classes for base in c.bases}
    if bases & {"Rule", "Wrapper", "OverWorkers"}:  # others may inherit their formula
        assert HOOKS & {f.name for f in functions}
    for function in functions:
        is_helper = function.name.startswith("_") and not function.name.startswith("__")
        if function.name not in PURE and not is_helper:
            continue
        for node in ast.walk(function):
            where = f"{relative(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute):
                assert isinstance(node.ctx, ast.Load), f"{where} sets {node.attr}"
                assert not node.attr.startswith("assign"), f"{where} {node.attr}"
            if isinstance(node, ast.Subscript):
                assert isinstance(node.ctx, ast.Load), f"{where} sets an item"


@every_rule
def test_a_rule_declares_no_base_options(case):
    allowed = {"weight_decay"}  # which is the rule's own then
    assert not set(case.cls._fields) - allowed & set(keras_tfopt.rule.OPTIONS)


def test_the_base_options_are_those_of_the_base():
    taken = inspect.signature(keras_tfopt.Rule.__bases__[0].__init__).parameters
    own = {n: p.default for n, p in taken.items() if p.kind is p.KEYWORD_ONLY}
    of_keras = inspect.signature(keras.optimizers.SGD).parameters
    of_keras = {n: p.default for n, p in of_keras.items() if n in keras_options()}
    assert keras_tfopt.rule.OPTIONS == {**of_keras, **own}


@every_case("case")
def test_public_optimizers_are_what_a_user_needs(case):
    assert getattr(keras_tfopt, case.name) is case.cls
    assert case.name in keras_tfopt.__all__
    assert keras.saving.get_registered_name(case.cls) == f"keras_tfopt>{case.name}"
    assert issubclass(case.reference, Reference) and case.reference.__name__ == case.name
    documentation = inspect.getdoc(case.cls)
    arguments = set(inspect.signature(case.cls.__init__).parameters) - {"self", "base"}
    if case.inner is None:
        arguments -= set(keras_tfopt.rule.OPTIONS) - set(case.cls._fields)
    for argument in arguments:
        assert f"{argument}:" in documentation, f"{case.name}: {argument} is not described"
    assert f"keras_tfopt.{case.name}(" in documentation, "an example"
    names = set().union(*case.make_reference().start({"x": np.ones(1)}).values())
    if case.inner is not None:
        names &= set(case.make_reference().slots(np.ones(1))) - set(case.inner().slot_names)
    assert all(f"`{name}`" in documentation for name in names)
    assert names or "Slots: none." in documentation


def test_one_rule_one_file():
    files = {pathlib.Path(inspect.getfile(case.cls)) for case in CASES}
    assert files <= set(RULES)
    assert len(files) == len(CASES)


def test_public_names_exist():
    assert len(set(keras_tfopt.__all__)) == len(keras_tfopt.__all__)
    for name in keras_tfopt.__all__:
        assert hasattr(keras_tfopt, name), name


# Import


# Names of the modules that are there with Keras, and of those that this package adds.
IMPORTS = """
import json, sys
import keras
keras_alone = set(sys.modules)
import keras_tfopt
print(json.dumps([sorted(keras_alone), sorted(set(sys.modules) - keras_alone)]))
"""


def test_import_brings_no_other_backend_and_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={**os.environ, "KERAS_BACKEND": BACKEND},
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    keras_alone, added = map(set, json.loads(done.stdout.splitlines()[-1]))
    assert "keras_tfopt" in added
    assert BACKEND in keras_alone
    foreign = {name for name in added if name.split(".")[0] in BACKENDS - {BACKEND}}
    assert not foreign
    heavy = {
        "scipy",
        "sklearn",
        "matplotlib",
        "pandas",
        "optax",
        "torch._dynamo",
        "torch._inductor",
    }
    assert not {n for n in added if any(n == h or n.startswith(f"{h}.") for h in heavy)}


# A new rule


@pytest.mark.parametrize("mode", MODES)
def test_a_new_rule_is_its_formula_and_nothing_else(mode):
    """What docs promise to a contributor: everything but the formula comes from the base."""

    @keras.saving.register_keras_serializable("tests")
    class SignOfAverage(keras_tfopt.Rule):
        sparse = "move_rows"  # no public optimizer has this one yet

        def __init__(self, learning_rate=0.125, beta=0.5, **base):
            super().__init__(learning_rate, **base)
            self.beta = beta

        def slots(self, like):
            return {"average": keras_tfopt.Slot(like.shape, 0.0)}

        def scalars(self, lr, step):
            return {"rate": lr / step}

        def update(self, g, x, s, t):
            average = self.beta * s.average + (1 - self.beta) * g
            return x - t.rate * keras.ops.sign(average), {"average": average}

    optimizer = SignOfAverage(beta=0.25, clipvalue=1.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again.beta == 0.25 and again.clipvalue == 1.0

    start = {"kernel": np.zeros(3), "embeddings": np.zeros((4, 2))}
    runner = Runner(again, start, mode)
    rows = Rows(np.ones((2, 2)), np.array([2, 0], "int32"))
    runner.step({"kernel": np.array([8.0, -8.0, 0.0]), "embeddings": rows})
    assert runner.values["kernel"].tolist() == [-0.125, 0.125, 0.0]
    assert runner.slots["kernel"]["average"].tolist() == [0.75, -0.75, 0.0]
    runner.step({"embeddings": Rows(-np.ones((2, 2)), np.array([3, 3], "int32"))})  # sum -2 -> -1
    assert runner.slots["embeddings"]["average"][:, 0].tolist() == [0.1875, 0.0, 0.1875, -0.75]
    assert runner.values["embeddings"][:, 0].tolist() == [-0.125, 0.0, -0.125, 0.0625]
    assert runner.values["kernel"].tolist() == [-0.125, 0.125, 0.0]
