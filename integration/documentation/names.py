"""The public names: what there is a page of."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from typing import Any

# Whatever is in several is named after the first.
MODULES = (
    "keras_tfopt",
    "keras_tfopt.layers",
    "keras_tfopt.callbacks",
    "keras_tfopt.schedules",
    "keras_tfopt.solvers",
    "keras_tfopt.rules",
    "keras_tfopt.wrappers",
    "keras_tfopt.distributed",
    "keras_tfopt.legacy",
    "keras_tfopt.addons",
    "keras_tfopt.migrate",
)
# keras_tfopt.engine is internal except for these.
MORE = {"keras_tfopt.engine": ("plain",)}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public name: `path` is what a user writes."""

    path: str
    item: Any

    @property
    def module(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@functools.cache
def public() -> list[Entry]:
    """Every public class and function, once."""
    found: dict[int, Entry] = {}
    for module in (*MODULES, *MORE):
        loaded = importlib.import_module(module)
        names = MORE.get(module, getattr(loaded, "__all__", ()))
        items = [(name, getattr(loaded, name)) for name in names]
        # Of two names of one class, that of the class comes first.
        for name, item in sorted(items, key=lambda pair: pair[0] != _name_of(*pair)):
            if not inspect.ismodule(item) and name != "__version__":
                found.setdefault(id(item), Entry(f"{module}.{name}", item))
    return list(found.values())


def _name_of(name: str, item: Any) -> str:
    return getattr(item, "__name__", name)


def path_of(item: Any) -> str | None:
    """The public name of an object, if it has one."""
    return next((entry.path for entry in public() if entry.item is item), None)


def is_public(path: str) -> bool:
    """Whether this is what a user writes for something public."""
    return any(entry.path == path for entry in public())


def resolves(dotted: str) -> bool:
    """Whether a dotted name stands for something."""
    first, *rest = dotted.split(".")
    found = importlib.import_module(first)
    for name in rest:
        if not hasattr(found, name):
            try:
                importlib.import_module(f"{found.__name__}.{name}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, name)
    return True
