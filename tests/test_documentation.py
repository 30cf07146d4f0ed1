"""Every public name is documented, with all arguments. Optimizers also have an example."""

import importlib
import inspect
import re

import keras
import pytest

import keras_tfopt
from integration.documentation import names

pytestmark = pytest.mark.spread

PUBLIC = names.public()


def ids(entry):
    return entry.path


every_name = pytest.mark.parametrize("entry", PUBLIC, ids=ids)


def arguments_of(item):
    if not callable(item):
        return []
    parameters = inspect.signature(item).parameters.values()
    return [p.name for p in parameters if p.name not in ("self", "args", "kwargs")]


def described(text):
    """Return the names that the sections of arguments, attributes and hooks describe."""
    found = set()
    for section in re.findall(
        r"^(?:Args|Attributes|Hooks):\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", text, re.M
    ):
        for head in re.findall(r"^[ ]{4}(\*{0,2}\w+(?:, \w+)*):", section, re.M):
            found |= {name.strip("* ") for name in head.split(",")}
    return found


@every_name
def test_a_public_name_is_documented(entry):
    text = inspect.getdoc(entry.item) or ""
    assert entry.item.__doc__, "the docstring must not be inherited"
    summary, _, rest = text.partition("\n")
    assert len(summary) >= 20 and summary.endswith((".", ":")), summary
    assert not rest or rest.startswith("\n"), "a blank line after the summary"
    assert not re.search(r"TODO|FIXME|XXX", text)
    missing = set(arguments_of(entry.item)) - described(text)
    if "base" in described(text):  # `Rule` describes these
        missing -= set(keras_tfopt.rule.OPTIONS)
    assert not missing, f"not described: {sorted(missing)}"


@every_name
def test_optimizers_have_an_example_and_defaults_are_right(entry):
    text = inspect.getdoc(entry.item) or ""
    is_optimizer = inspect.isclass(entry.item) and issubclass(
        entry.item, keras.optimizers.Optimizer
    )
    bases = (keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.distributed.OverWorkers)
    if is_optimizer and entry.item not in bases:
        assert "Example:" in text and "Reference" in text and "Slots:" in text
    # Defaults in the text equal those of the signature.
    parameters = inspect.signature(entry.item).parameters if callable(entry.item) else {}
    for name, parameter in parameters.items():
        found = re.search(
            rf"^    {name}: (?:(?!^    \S).)*?Defaults to ([^\s,;:]+)", text, re.M | re.S
        )
        if found and parameter.default is not parameter.empty:
            said = found.group(1).rstrip(".").strip("`")
            if re.fullmatch(r"-?[\d.e+*-]+|None|True|False", said):
                assert eval(said) == parameter.default, f"{name}: {said}, is {parameter.default!r}"


@every_name
def test_names_that_a_docstring_mentions_exist(entry):
    for dotted in re.findall(r"`(keras_tfopt(?:\.\w+)+)", inspect.getdoc(entry.item) or ""):
        assert names.resolves(dotted), dotted


@pytest.mark.parametrize("entry", [e for e in PUBLIC if inspect.isclass(e.item)], ids=ids)
def test_public_methods_of_ours_are_documented(entry):
    for name, member in vars(entry.item).items():
        is_public = not name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        )
        bases = entry.item.__mro__
        if is_public and not any(name in described(inspect.getdoc(b) or "") for b in bases):
            assert inspect.getdoc(getattr(entry.item, name)), f"{entry.path}.{name}"


def test_nothing_public_is_left_out():
    paths = {entry.path for entry in PUBLIC}
    for module in names.MODULES:
        found = importlib.import_module(module)
        assert found.__doc__
        for name in found.__all__:
            item = getattr(found, name)
            if inspect.ismodule(item) or name == "__version__":
                continue
            assert f"{module}.{name}" in paths or names.path_of(item) in paths, name
    assert {"keras_tfopt.LARS", "keras_tfopt.layers.Embedding", "keras_tfopt.legacy.get"} <= paths
    assert len(paths) == len(PUBLIC)
