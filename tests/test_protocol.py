"""The running backend has the functions of the protocol, with their parameters, and no others.

mypy checks in `tests/typing/backends.py` that their types fit.
"""

import ast
import inspect
import pathlib
import re
import types

import pytest

from keras_tfopt.engine.backends.protocol import Backend
from keras_tfopt.engine.backends.select import backend

DECLARED = {name: getattr(Backend, name) for name in dir(Backend) if not name.startswith("_")}
FILES = sorted(pathlib.Path(inspect.getfile(Backend)).parent.parent.rglob("*.py"))
# Attributes of variables of Keras. Those of `engine` are the package's own.
OURS = {"_value", "_layout"}


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", DECLARED)
def test_a_function_has_the_parameters_of_the_protocol(name):
    assert parameters(getattr(backend, name)) == parameters(DECLARED[name])


def test_a_backend_offers_nothing_else():
    kinds = (types.FunctionType, type)
    offered = {name for name, value in vars(backend).items() if isinstance(value, kinds)}
    assert offered == set(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_functions_are_described_in_the_protocol_only(name):
    assert DECLARED[name].__doc__
    function = getattr(backend, name)
    is_ours = function.__module__.startswith("keras_tfopt")  # not so `tf.init_scope`
    assert not is_ours or function.__doc__ is None


def private_names_in(path):
    """Names with an underscore that a file takes from other modules or objects."""
    own, used = set(OURS), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) != "engine":
            (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            used |= {part for name in names for part in name.split(".")}
            used |= {f"_ in {name}" for name in names if re.match(r"tensorflow\.python", name)}
            used |= {f"_ in {name}" for name in names if name == "keras.src"}
    return {name for name in used - own if re.match("_[^_]", name)}


@pytest.mark.spread
def test_private_names_of_the_libraries_are_in_files_of_their_own():
    found = {path: private_names_in(path) for path in FILES if path.name != "private.py"}
    assert {path.name: names for path, names in found.items() if names} == {}
