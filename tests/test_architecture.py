"""Rules for the source code of the package: its imports, its private names, its rule files.

The tests read the source with `ast`. So they find a wrong import even where it would work.
"""

import ast
import functools
import graphlib
import inspect
import json
import pathlib

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine.keras_private import ATTRIBUTES
from tests.cases import CASES, every_case, every_rule, keras_options
from tests.helpers.programs import output_of
from tests.helpers.stepping import BACKEND
from tests.reference import Reference

PACKAGE = pathlib.Path(keras_tfopt.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Rules and wrappers; files of helpers, which define no class, may stand next to them.
RULES = [f for f in FILES if f.parent.name in ("rules", "wrappers") and "\nclass " in f.read_text()]
RULES += [f for f in FILES if f.parent.name == "distributed" and "\n@register" in f.read_text()]
BACKENDS = {"tensorflow", "jax", "jaxlib", "torch"}
HOOKS = {"update", "before", "after", "accept", "accept_step", "receive", "takes_part"}
PURE = HOOKS | {"slots", "scalars", "facts", "reach", "average", "send", "alone", "counts"}


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


every_rule_file = pytest.mark.parametrize("path", RULES, ids=relative)


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path):
    """Return the part of the package that a file belongs to: `engine`, `rules`, `exchanges`, ..."""
    first, *rest = path.relative_to(PACKAGE).parts
    return "exchanges" if "exchanges" in rest else first.removesuffix(".py")


def imports(path, at_the_top=False):
    """Dotted names of everything imported in a file or at its top, `from a import b` as a.b."""
    names, tree = [], tree_of(path)
    for node in tree.body if at_the_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{relative(path)}: relative import, write the full name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def module_of(path):
    return ".".join(["keras_tfopt", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )


@pytest.mark.spread
def test_there_is_no_circle_of_imports():
    modules = {module_of(path): path for path in FILES}
    imported = {}
    for module, path in modules.items():
        names = set()
        for node in tree_of(path).body:  # without imports in functions and for type checkers
            if isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        imported[module] = names & modules.keys() - {module}
        # A package is imported before what is in it, and may import that.
        if path.name == "__init__.py":
            imported[module] = {n for n in imported[module] if not n.startswith(f"{module}.")}
    tuple(graphlib.TopologicalSorter(imported).static_order())  # raises CycleError


@pytest.mark.spread
def test_there_is_something_to_check():
    assert len(RULES) >= 4
    assert {"engine", "rule", "rules", "__init__"} <= {part_of(f) for f in FILES}


@pytest.mark.spread
def test_one_file_imports_what_keras_keeps_private():
    """import-linter checks all other imports: see pyproject.toml."""
    found = [path for path in FILES if any(name.startswith("keras.src") for name in imports(path))]
    assert [relative(path) for path in found] == ["engine/keras_private.py"]


@functools.cache
def private_names():
    """Underscore names of Keras's optimizers, layers, models and variables."""
    layer, optimizer = keras.layers.Embedding(2, 2), keras.optimizers.SGD(0.1)
    scaling = keras.optimizers.LossScaleOptimizer(optimizer)
    known = [layer, optimizer, scaling, keras.Sequential([layer]), keras.Variable(0.0)]
    names = {name for one in known for name in dir(one) if name.startswith("_")}
    assert {"_backend_update_step", "_learning_rate", "_flatten_layers", "_value"} <= names
    return {name for name in names if not name.endswith("__")}


def private_names_in(path):
    """Private names of Keras that a file reads as attributes and does not define itself."""
    nodes = list(ast.walk(tree_of(path)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {node.attr for node in attributes} & private_names() - own


def test_what_keras_keeps_private_is_listed():
    used = {relative(path): private_names_in(path) for path in FILES}
    # Optimizers of TensorFlow, and tensors of PyTorch, have some as well.
    of_others = {"legacy": {"_name", "_apply"}, "engine/backends/torch/private.py": {"_version"}}
    for file, names in used.items():
        part = file.split("/")[0]
        also = of_others.get(part, set()) | of_others.get(file, set())
        assert names <= {*ATTRIBUTES, *also}, file
        assert not names or part in ("engine", "distributed", "legacy"), file


def lines_of_code(path):
    """The number of lines without docstrings, which are long where there are many arguments."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    for node in ast.walk(tree_of(path)):
        documented = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Module))
        if documented and ast.get_docstring(node):
            text = node.body[0]
            lines -= text.end_lineno - text.lineno + 1
    return lines


@pytest.mark.spread
def test_rule_files_are_short():
    lengths = {relative(path): lines_of_code(path) for path in RULES}
    assert {file: n for file, n in lengths.items() if n > 140} == {}  # Shampoo has the most


@pytest.mark.spread
def test_files_and_classes_can_be_read():
    """A file has 400 lines at most, in the package as among its tests; a class, 25 methods."""
    tests = sorted(pathlib.Path(__file__).parent.rglob("*.py"))
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in [*FILES, *tests]}
    assert {file: n for file, n in lengths.items() if n > 400} == {}
    methods = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                found = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                methods[f"{relative(path)}: {node.name}"] = len(found)
    assert {name: n for name, n in methods.items() if n > 25} == {}


@pytest.mark.spread
@every_rule_file
def test_a_rule_is_pure(path):
    """The methods of a rule assign no attribute, no item and no variable."""
    classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    functions = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]
    bases = {getattr(base, "id", None) for c in classes for base in c.bases}
    # Other classes may inherit their formula, or use that of the optimizer inside.
    if bases & {"Rule", "Wrapper", "OverWorkers"} and "SharingEngine" not in bases:
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


def top_level_names(path):
    """Names that a file defines, assigns or imports."""
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return found


@pytest.mark.spread
def test_the_eager_and_the_graph_form_of_legacy_define_the_same_names():
    """`legacy` defines four classes twice: for eager code and for graphs. All others exist once."""
    files = [f for f in FILES if part_of(f) == "legacy"]
    used = {
        node.attr
        for file in files
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "running"
    }
    bases = {name for name in used if name.endswith("Verbs")}
    assert bases == {"RuleVerbs", "WrapperVerbs", "DecayVerbs", "CustomVerbs"}
    legacy = PACKAGE / "legacy"
    for module in (legacy / "eager.py", legacy / "graph" / "__init__.py"):
        assert used <= top_level_names(module), relative(module)
    classes = [
        node.name
        for file in files
        if file.name != "eager.py"
        for node in tree_of(file).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) == len(set(classes))


@every_rule
def test_a_rule_declares_no_base_options(case):
    allowed = {"weight_decay"}  # a rule may have its own
    assert not set(case.cls._fields) - allowed & set(keras_tfopt.rule.OPTIONS)


def test_the_base_options_are_those_of_the_base():
    taken = inspect.signature(keras_tfopt.engine.Engine.__init__).parameters
    own = {n: p.default for n, p in taken.items() if p.kind is p.KEYWORD_ONLY}
    of_keras = inspect.signature(keras.optimizers.SGD).parameters
    of_keras = {n: p.default for n, p in of_keras.items() if n in keras_options()}
    of_keras["name"] = None  # in Keras 3.12, the name of the class
    assert keras_tfopt.rule.OPTIONS == {**of_keras, **own}


@every_case("case")
def test_public_optimizers_are_exported_and_documented(case):
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


@pytest.mark.spread
def test_one_rule_one_file():
    files = {pathlib.Path(inspect.getfile(case.cls)) for case in CASES}
    assert files <= set(RULES)
    assert len(files) == len(CASES)


# Import


# Names of the modules that are there with Keras, and of those that this package adds.
IMPORTS = """
import json, sys
import keras
keras_alone = set(sys.modules)
import keras_tfopt
print(json.dumps([sorted(keras_alone), sorted(set(sys.modules) - keras_alone)]))
"""


@pytest.mark.backends("torch", reason="on TensorFlow, graphs are loaded, too")
def test_import_brings_no_other_backend_and_nothing_heavy():
    """Files that are loaded on every backend import none at their top."""
    keras_alone, added = map(set, json.loads(output_of("-c", IMPORTS, hidden=()).splitlines()[-1]))
    assert "keras_tfopt" in added
    assert BACKEND in keras_alone
    foreign = {name for name in added if name.split(".")[0] in BACKENDS - {BACKEND}}
    assert not foreign
    common = [path for path in FILES if module_of(path) in added and "backends" not in path.parts]
    at_the_top = {name for path in common for name in imports(path, at_the_top=True)}
    assert common and not {name.split(".")[0] for name in at_the_top} & BACKENDS
    heavy = {"scipy", "sklearn", "matplotlib", "pandas", "optax"}
    heavy |= {"torch._dynamo", "torch._inductor"}
    assert not {n for n in added if any(n == h or n.startswith(f"{h}.") for h in heavy)}
