"""Optimizers by name: which there are, what each does, and how to get one."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

import keras

from keras_tfopt import distributed, rules, wrappers
from keras_tfopt.execution import (
    Like,
    all_arguments,
    did_you_mean,
    nearest,
    optimizer_from,
    own_parameters,
    short,
)
from keras_tfopt.formulas import plain_text
from keras_tfopt.legacy.table import TABLE
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer
from keras_tfopt.rule import OPTIONS, Rule
from keras_tfopt.wrapper import Wrapper

SIDE = 512  # of the matrix for which bytes are counted
SOURCES = (*dict.fromkeys(row.source for row in TABLE.values()), "tensorflow_addons", "keras")
_ADDONS = {
    "AdamW": "AdamW",
    "Lookahead": "Lookahead",
    "MovingAverage": "MovingAverage",
    "StochasticWeightAveraging": "SWA",
}
# For arguments that must be given, where state is counted: what state there is does not depend on
# them.
_GIVEN = {
    "weight_decay": 0.0,
    "max_norm": 1.0,
    "vars_to_clip_dims": {".": []},
    "replicas_to_aggregate": 1,
    "staleness": 0,
}
# Other names under which people look for them.
_ALIASES = {
    "ema": "moving_average",
    "sgdw": "momentum_w",
    "swa": "stochastic_weight_averaging",
}


@dataclasses.dataclass(frozen=True)
class Info:
    """What is known of an optimizer. Printed, it is a page of text, formulas in plain characters.

    Attributes:
        name: The name by which `get` makes it: `"lazy_adam"`, `"keras.adam"`.
        optimizer_class: Its class.
        description: One line.
        formula: Its equations, in LaTeX; empty for optimizers of Keras.
        defaults: Arguments of its constructor with their defaults, without the options that all
            have; `inspect.Parameter.empty` where one must be given.
        slots: What state it keeps, in words.
        bytes_per_parameter: Of its float32 state, for a large matrix; of a wrapper without that of
            the optimizer that it is given.
        scope: What a step of it looks at: "element", "variable" or "model"; None for wrappers and
            optimizers of Keras.
        row_gradients: What a row gradient does, in words.
        lazy: Whether a row gradient leaves other rows alone.
        second_order: Whether it multiplies gradients by more than a diagonal matrix.
        paper: Where it comes from; may be empty.
        originals: Names of what it stands for, with their modules.
        differences: From these, and from the optimizer of Keras with a similar name. For one of
            Keras, where to read about them.
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
        lines = [f"{self.name}: {self.description}", f"{_path(self.optimizer_class)}({arguments})"]
        lines += [self.formula] if self.formula else []
        page = "\n\n".join([*lines, "\n".join(f"{k}: {v}" for k, v in facts.items() if v)])
        return plain_text(page)


@overload
def list_optimizers(
    filter: str | Iterable[str] = ...,
    *,
    exclude: str | Iterable[str] = ...,
    with_description: Literal[False] = ...,
    row_gradients: bool | None = ...,
    second_order: bool | None = ...,
    source: str | None = ...,
) -> list[str]: ...


@overload
def list_optimizers(
    filter: str | Iterable[str] = ...,
    *,
    exclude: str | Iterable[str] = ...,
    with_description: Literal[True],
    row_gradients: bool | None = ...,
    second_order: bool | None = ...,
    source: str | None = ...,
) -> list[tuple[str, str]]: ...


def list_optimizers(
    filter: str | Iterable[str] = "*",
    *,
    exclude: str | Iterable[str] = (),
    with_description: bool = False,
    row_gradients: bool | None = None,
    second_order: bool | None = None,
    source: str | None = None,
) -> list[Any]:
    """Names of optimizers: of this package, its wrappers, and Keras's own as `"keras.adam"`.

    Args:
        filter: A pattern with `*` and `?`, or several. `"ada*"` finds `"keras.adam"`, too. What has
            neither is a name, as of `info`.
        exclude: Patterns of names to leave out.
        with_description: Give pairs of a name and a line of description.
        row_gradients: Only those for which a row gradient leaves other rows alone (True), or
            does not (False). Wrappers, which pass rows on, are left out by either.
        second_order: Only those that multiply gradients by more than a diagonal matrix, or less.
        source: Only those that stand for something in this module: `"tf.train"`,
            `"tf.contrib.opt"`, `"returnn.tf.updater"`, `"tensorflow_addons"`, `"keras"`.

    Raises:
        ValueError: for a name that no optimizer has; the message has similar names.

    Example:

    >>> keras_tfopt.list_optimizers("ada*", source="tf.train")
    ['adadelta', 'adagrad', 'adagrad_da', 'adam']
    """
    wanted, unwanted = _patterns("filter", filter), _patterns("exclude", exclude)
    for argument, choice in (("row_gradients", row_gradients), ("second_order", second_order)):
        if choice is not None and not isinstance(choice, bool):
            raise TypeError(
                f"Argument `{argument}` must be True, False or None. Received: {choice!r}"
            )
    if source is not None and source not in SOURCES:
        raise ValueError(f"Argument `source` must be one of {SOURCES}. Received: {source!r}")
    found = []
    for name, cls in _classes().items():
        if not _matches(name, wanted) or _matches(name, unwanted):
            continue
        if row_gradients is not None and (
            issubclass(cls, (Wrapper, LossScaleOptimizer)) or _is_lazy(cls) != row_gradients
        ):
            continue
        if second_order is not None and getattr(cls, "second_order", False) != second_order:
            continue
        if source is not None and not any(
            original.startswith(source + ".") for original in _originals(name, cls)
        ):
            continue
        found.append((name, _description(cls)) if with_description else name)
    return found


def info(name: str | type | Rule | Wrapper | LossScaleOptimizer) -> Info:
    """What is known of an optimizer.

    Args:
        name: As of `list_optimizers`, or the name of a class, or that of the original:
            `"lars"`, `"LARS"` and `"LARSOptimizer"` are the same. Also the class itself, or an
            optimizer of it.

    Raises:
        ValueError: if there is no such optimizer; the message has similar names.
    """
    name = _known(name)
    cls = _classes()[name]
    text = inspect.getdoc(cls) or ""
    parameters = inspect.signature(cls).parameters.values()
    ours = not name.startswith("keras.")
    return Info(
        name=name,
        optimizer_class=cls,
        description=_description(cls),
        formula=_formula(text) if ours else "",
        defaults={
            p.name: p.default
            for p in parameters
            if p.kind is not inspect.Parameter.VAR_KEYWORD
            and p.name != "name"
            and (p.name not in OPTIONS or (ours and p.name in own_parameters(cls)))
        },
        slots=_section(text, "Slots") or ", ".join(f"`{slot}`" for slot in _slots_of_keras(cls)),
        bytes_per_parameter=_bytes_per_parameter(cls),
        scope=getattr(cls, "scope", None),
        row_gradients=_section(text, "Row gradients") or "as if dense",
        lazy=_is_lazy(cls),
        second_order=getattr(cls, "second_order", False),
        paper=_section(text, "Reference") or _section(text, "References"),
        originals=_originals(name, cls),
        differences=_section(text, "Differences") or _where_to_compare(cls),
    )


def get(identifier: Any, **arguments: Any) -> Any:
    """An optimizer from its name, its configuration, or itself.

    `keras.optimizers.get` and `model.compile` know those of this package by the names under which
    they are registered: `"keras_tfopt>LARS"`, with default arguments.

    Args:
        identifier: A name or class as of `info`; a wrapper around a name as
            `"moving_average(lars)"`, nested as deeply as you like; a configuration, as of
            `keras.optimizers.serialize` or `{"class_name": "LARS", "config": {...}}`; or a
            `keras.optimizers.Optimizer`, which is returned.
        **arguments: Arguments of the constructors. With wrappers, each goes to the outermost that
            has an argument of this name.

    Raises:
        ValueError: if there is no such optimizer.
        TypeError: if no constructor takes an argument, or a wrapper lacks one.

    Example:

    >>> optimizer = keras_tfopt.get("moving_average(lars)", learning_rate=0.5, average_decay=0.99)
    """
    if isinstance(identifier, (Mapping, keras.optimizers.Optimizer)):
        if arguments:
            raise TypeError(
                "Arguments can be given together with a name only. Received: "
                f"{sorted(arguments)} for {identifier!r}"
            )
        return optimizer_from(identifier)
    if isinstance(identifier, type):
        names = [_known(identifier)]
    elif isinstance(identifier, str):
        names = [_known(name) for name in _parsed(identifier)]
    else:
        raise TypeError(
            "Argument `identifier` must be a name, a configuration or an optimizer. Received: "
            f"{identifier!r}"
        )
    classes = [_classes()[name] for name in names]
    for outer in classes[:-1]:
        if "inner_optimizer" not in inspect.signature(outer).parameters:
            raise ValueError(
                f"{outer.__name__} goes around no other optimizer. Received: {identifier!r}"
            )
    given: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in arguments.items():
        takers = [n for n, cls in enumerate(classes) if name in _parameters(cls)]
        if not takers:
            allowed = sorted({p for cls in classes for p in _parameters(cls)})
            raise TypeError(
                f"{identifier!r} takes the arguments {allowed}. Received: {name!r}. "
                f"{did_you_mean(name, allowed) if nearest(name, allowed) else ''}".rstrip()
            )
        given[takers[0]][name] = value
    made: list[Any] = []
    for cls, own in zip(reversed(classes), reversed(given), strict=True):
        try:
            inspect.signature(cls).bind(*made, **own)
        except TypeError as error:
            raise TypeError(f"{_path(cls)}: {error}. Received: {identifier!r}, {own}") from None
        made = [cls(*made, **own)]
    return made[0]


def _parsed(identifier: str) -> list[str]:
    """From "a(b(c))" to a, b and c."""
    opened = identifier.rstrip(")")
    names = [name.strip() for name in opened.split("(")]
    if len(identifier) - len(opened) != len(names) - 1 or not all(names):
        raise ValueError(
            "Argument `identifier` must be a name, or wrappers around one in the form "
            f"'outer(inner)'. Received: {identifier!r}"
        )
    return names


def _parameters(cls: type) -> list[str]:
    """Arguments by name, options of the base among them, but not the optimizer inside."""
    return [name for name in all_arguments(cls) if name != "inner_optimizer"]


def _classes() -> dict[str, type]:
    """Every optimizer by its name: that of the file of its rule, or of Keras."""
    found = {}
    for module in (rules, wrappers, distributed):
        for name in module.__all__:
            cls = getattr(module, name)
            is_optimizer = inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)
            if is_optimizer and cls is not distributed.OverWorkers:
                found[cls.__module__.rsplit(".", 1)[-1]] = cls
    found["loss_scale_optimizer"] = LossScaleOptimizer
    for name, cls in vars(keras.optimizers).items():
        is_optimizer = inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)
        if is_optimizer and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):
            found[f"keras.{name.lower()}"] = cls
    return dict(sorted(found.items()))


def _known(name: Any) -> str:
    """The name, as of `list_optimizers`, for any name of an optimizer, its class or itself."""
    classes = _classes()
    if isinstance(name, keras.optimizers.Optimizer):
        name = type(name)
    if isinstance(name, type):
        # On PyTorch, optimizers of Keras are of subclasses of its public classes.
        same = name.__mro__ if name.__module__.startswith("keras.") else (name,)
        for known, cls in classes.items():
            if cls in same:
                return known
        name = name.__name__ if name.__module__.startswith("keras_tfopt.legacy") else name
    if not isinstance(name, str):
        raise TypeError(
            "Argument `name` must be a name of an optimizer, or a class of this package or of "
            f"Keras. Received: {name!r}"
        )
    ours = {cls.__name__: n for n, cls in classes.items() if "." not in n}
    found: dict[str, str] = {
        short(known.removeprefix("keras.")): known for known in classes if "." in known
    }
    found.update(_ALIASES)
    found.update({short(old): ours[new] for old, new in _counterparts().items() if new in ours})
    found.update({short(cls): known for cls, known in ours.items()})
    found.update({short(known): known for known in classes})
    if short(name) in found:
        return found[short(name)]
    similar = nearest(name, classes, 5)
    raise ValueError(
        f"There is no optimizer {name!r}. "
        + (f"Similar names: {similar}" if similar else "See keras_tfopt.list_optimizers()")
    )


def _patterns(argument: str, given: Any) -> list[str]:
    """The patterns of an argument, those without `*` and `?` as names that there are."""
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, Iterable) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(
            f"Argument `{argument}` must be a pattern such as 'ada*', or several in a list. "
            f"Received: {given!r}"
        )
    return [
        p if set(p) & set("*?[") or any(_matches(name, [p]) for name in _classes()) else _known(p)
        for p in patterns
    ]


def _matches(name: str, patterns: list[str]) -> bool:
    names = {name, name.removeprefix("keras.")}
    return any(fnmatch.fnmatchcase(one, pattern) for one in names for pattern in patterns)


def _is_lazy(cls: type) -> bool:
    return getattr(cls, "sparse", "dense") != "dense"


def _originals(name: str, cls: type) -> tuple[str, ...]:
    if name.startswith("keras."):
        return (f"keras.optimizers.{cls.__name__}",)
    counterparts = _counterparts()
    found = [
        f"{row.source}.{old}" for old, row in TABLE.items() if counterparts[old] == cls.__name__
    ]
    if cls.__name__ in _ADDONS:
        found.append(f"tensorflow_addons.optimizers.{_ADDONS[cls.__name__]}")
    return tuple(found)


def _counterparts() -> dict[str, str]:
    """From the names of originals to those of classes: of the same name, if there is one."""
    public = {*rules.__all__, *wrappers.__all__, *distributed.__all__}
    return {
        old: plain if (plain := old.removesuffix("Optimizer")) in public else row.ours
        for old, row in TABLE.items()
    }


def _bytes_per_parameter(cls: Any) -> float:
    if issubclass(cls, Rule):
        like = Like((SIDE, SIDE), "float32", "kernel")
        slots = cls().slots([like] if cls.scope == "model" else like)
        sizes = [math.prod(d or SIDE**2 for d in slot.shape) for slot in slots.values()]
    else:
        sizes = [math.prod(v.shape) for v in _built(cls).variables if len(v.shape)]
    return 4 * sum(sizes) / SIDE**2


def _slots_of_keras(cls: type) -> list[str]:
    """From the paths of variables: "adam/kernel_momentum" is the slot "momentum"."""
    names = [v.path.rsplit("/", 1)[-1] for v in _built(cls).variables if len(v.shape)]
    return [name.removeprefix("kernel_") for name in names] or ["none"]


def _built(cls: type) -> Any:
    """One of the class, for a matrix."""
    given = {name: "sgd" if name == "inner_optimizer" else _GIVEN[name] for name in _required(cls)}
    optimizer = cls(**given)
    optimizer.build([keras.Variable(keras.ops.zeros((SIDE, SIDE)), name="kernel")])
    return optimizer


def _where_to_compare(cls: type) -> str:
    """Of an optimizer of Keras: which of ours has its name."""
    for name, other in _classes().items():
        if "." not in name and other.__name__.lower() == cls.__name__.lower():
            return f"from `keras_tfopt.{other.__name__}`: see `keras_tfopt.info({name!r})`."
    return ""


def _required(cls: type) -> list[str]:
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def _description(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n", 1)[0].strip()


def _path(cls: type) -> str:
    package = "keras.optimizers" if cls.__module__.startswith("keras.") else "keras_tfopt"
    return f"{package}.{cls.__name__}"


def _section(text: str, title: str) -> str:
    """The paragraph of a docstring that starts with `Title:`, on one line; or nothing."""
    found = re.search(rf"^{title}:\s*(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()).removeprefix("- ") if found else ""


def _formula(text: str) -> str:
    """The equations of a docstring, with what is said about them."""
    if "$$" not in text:
        return ""
    start, end = text.index("$$"), text.index("\nArgs:")
    return text[start:end].strip()
