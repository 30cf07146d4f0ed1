"""Collect information on optimizers from their classes, signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import keras

from keras_tfopt.engine import own_parameters
from keras_tfopt.formulas import plain_text
from keras_tfopt.rule import OPTIONS
from keras_tfopt.wrapper import Wrapper

SIDE = 512  # of the matrix for which bytes of state are counted
# Values of required arguments for counting state, which does not depend on them.
_GIVEN: dict[str, Any] = {
    "inner_optimizer": "sgd",
    "weight_decay": 0.0,
    "max_norm": 1.0,
    "vars_to_clip_dims": {".": []},
    "replicas_to_aggregate": 1,
    "staleness": 0,
}


@dataclasses.dataclass(frozen=True)
class Info:
    """Information on an optimizer; prints as a page of text with formulas in plain characters.

    Attributes:
        name: The name by which `get` makes it: `"lazy_adam"`, `"keras.adam"`.
        optimizer_class: Its class.
        description: One line.
        formula: Its equations, in LaTeX; empty for optimizers of Keras.
        defaults: Arguments of its constructor with their defaults, without the options of all
            optimizers; `inspect.Parameter.empty` is for required arguments.
        slots: The state that it keeps, in words.
        bytes_per_parameter: Size of its float32 state for a large matrix; for a wrapper, without
            the state of the optimizer that it is given.
        scope: The part of a model that an update needs at once: "element", "variable" or "model";
            None for wrappers and optimizers of Keras.
        row_gradients: The effect of a row gradient, in words.
        lazy: Whether a row gradient leaves other rows alone.
        second_order: Whether it multiplies gradients by more than a diagonal matrix.
        paper: The paper or book that it comes from; may be empty.
        originals: Names of the optimizers that it corresponds to, with their modules.
        differences: Differences from these, and from the optimizer of Keras with a similar name.
            For an optimizer of Keras, where to read about them.
    """

    name: str
    optimizer_class: type
    description: str
    formula: str
    defaults: Mapping[str, Any]
    slots: str
    bytes_per_parameter: float
    scope: str | None
    row_gradients: str
    lazy: bool
    second_order: bool
    paper: str
    originals: tuple[str, ...]
    differences: str

    def __str__(self) -> str:
        arguments = ", ".join(
            name if value is inspect.Parameter.empty else f"{name}={value!r}"
            for name, value in self.defaults.items()
        )
        facts = {
            "Slots": self.slots,
            "State": f"{self.bytes_per_parameter:.3g} bytes a parameter",
            "Scope": self.scope or "",
            "Row gradients": self.row_gradients,
            "Stands for": ", ".join(self.originals),
            "Paper": self.paper,
            "Differences": self.differences,
        }
        title = plain_text(f"{self.name}: {self.description}")
        page = [self.formula] if self.formula else []
        page.append("\n".join(f"{k}: {v}" for k, v in facts.items() if v))
        call = f"{path(self.optimizer_class)}({arguments})"  # where a pattern may end in "$"
        return "\n\n".join([title, call, plain_text("\n\n".join(page))])


def described(name: str, cls: Any, originals: tuple[str, ...], elsewhere: str) -> Info:
    """Return the information on an optimizer class.

    Args:
        name: Its name in the registry.
        cls: The class.
        originals: Names of the optimizers that it corresponds to.
        elsewhere: Where to read about differences, if its docstring has none.
    """
    text = inspect.getdoc(cls) or ""
    parameters = inspect.signature(cls).parameters.values()
    ours = not name.startswith("keras.")
    state = _state(cls)
    return Info(
        name=name,
        optimizer_class=cls,
        description=description(cls),
        formula=_formula(text) if ours else "",
        defaults={
            p.name: p.default
            for p in parameters
            if p.kind is not inspect.Parameter.VAR_KEYWORD
            and p.name != "name"
            and (p.name not in OPTIONS or (ours and p.name in own_parameters(cls)))
        },
        slots=_section(text, "Slots") or ", ".join(_slots_of_keras(state)),
        bytes_per_parameter=4 * sum(math.prod(v.shape) for v in state) / SIDE**2,
        scope=None if issubclass(cls, Wrapper) else getattr(cls, "scope", None),
        row_gradients=_section(text, "Row gradients") or "as if dense",
        lazy=is_lazy(cls),
        second_order=getattr(cls, "second_order", False),
        paper=_section(text, "Reference") or _section(text, "References"),
        originals=originals,
        differences=_section(text, "Differences") or elsewhere,
    )


def is_lazy(cls: type) -> bool:
    """Return whether a row gradient leaves other rows alone."""
    return getattr(cls, "sparse", "dense") != "dense"


def _required(cls: type) -> list[str]:
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def description(cls: type) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(cls) or "").split("\n", 1)[0].strip()


def path(cls: type) -> str:
    """Return the public path of a class."""
    package = "keras.optimizers" if cls.__module__.startswith("keras.") else "keras_tfopt"
    return f"{package}.{cls.__name__}"


def _section(text: str, title: str) -> str:
    """Return the paragraph of a docstring that starts with `Title:`, on one line; or ""."""
    found = re.search(rf"^{title}:\s*(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()).removeprefix("- ") if found else ""


def _formula(text: str) -> str:
    """Return what a docstring says of its equations: all between its summary and `Args:`."""
    if "$$" not in text:
        return ""
    start, end = text.index("\n\n"), text.index("\nArgs:")
    return text[start:end].strip()


def _state(cls: type) -> list[Any]:
    """Return an optimizer's variables for a matrix, without scalars."""
    optimizer = cls(**{name: _GIVEN[name] for name in _required(cls)})
    optimizer.build([keras.Variable(keras.ops.zeros((SIDE, SIDE)), name="kernel")])
    return [variable for variable in optimizer.variables if len(variable.shape)]


def _slots_of_keras(state: list[Any]) -> list[str]:
    """Return names of slots from paths: "adam/kernel_momentum" is the slot "momentum"."""
    names = [variable.path.rsplit("/", 1)[-1] for variable in state]
    return [f"`{name.removeprefix('kernel_')}`" for name in names] or ["`none`"]
