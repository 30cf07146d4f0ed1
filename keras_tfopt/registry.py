"""Find optimizers by name: list all, return information on one, make one."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import keras

from keras_tfopt import distributed, rules, wrappers
from keras_tfopt.addons.table import SOURCE as ADDONS
from keras_tfopt.addons.table import TABLE as ADDONS_TABLE
from keras_tfopt.engine import (
    all_arguments,
    did_you_mean,
    keras_optimizers,
    nearest,
    nested,
    optimizer_from,
    short,
)
from keras_tfopt.information import Info, described, description, is_lazy, path
from keras_tfopt.legacy.table import TABLE
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer
from keras_tfopt.rule import Rule
from keras_tfopt.wrapper import Wrapper

SOURCES = (*dict.fromkeys(row.source for row in TABLE.values()), "tensorflow_addons", "keras")
# Optimizers of Keras that wrap others.
_AROUND_OTHERS = {"lossscaleoptimizer", "multioptimizer"}
# Other names in common use.
_ALIASES = {
    "ema": "moving_average",
    "radam": "rectified_adam",
    "swa": "stochastic_weight_averaging",
}


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
    """Return names of optimizers: of this package, its wrappers, and Keras's as `"keras.adam"`.

    Args:
        filter: A pattern with `*` and `?`, or several, in small or large letters. `"ada*"` finds
            `"keras.adam"`, too. A text without these is a name, as in `info`.
        exclude: Patterns of names to leave out.
        with_description: Return pairs of a name and a line of description.
        row_gradients: Only those for which a row gradient leaves other rows alone (True), or
            does not (False). Both leave out wrappers, which pass rows on.
        second_order: Only those that multiply gradients by more than a diagonal matrix (True), or
            do not (False).
        source: Only those that correspond to an optimizer of this module: `"tf.train"`,
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

    def fits(name: str, cls: Any) -> bool:
        around = issubclass(cls, (Wrapper, LossScaleOptimizer))
        return (
            _matches(name, wanted)
            and not _matches(name, unwanted)
            and (row_gradients is None or (not around and is_lazy(cls) == row_gradients))
            and (second_order is None or getattr(cls, "second_order", False) == second_order)
            and (source is None or any(o.startswith(f"{source}.") for o in _originals(name, cls)))
        )

    found = {name: cls for name, cls in _classes().items() if fits(name, cls)}
    if with_description:
        return [(name, description(cls)) for name, cls in found.items()]
    return list(found)


def info(name: str | type | Rule | Wrapper | LossScaleOptimizer) -> Info:
    """Return the information on an optimizer.

    Args:
        name: A name from `list_optimizers`, or the name of a class or of the original: `"lars"`,
            `"LARS"` and `"LARSOptimizer"` are the same. It may also be a class or an optimizer.

    Raises:
        ValueError: if there is no such optimizer; the message has similar names.
    """
    name = _known(name)
    cls = _classes()[name]
    return described(name, cls, _originals(name, cls), _where_to_compare(cls))


def get(identifier: Any, **arguments: Any) -> Any:
    """Return an optimizer from its name, its configuration, or itself.

    `keras.optimizers.get` and `model.compile` find optimizers of this package by their registered
    names, as `"keras_tfopt>LARS"`, with default arguments.

    Args:
        identifier: A name or class as in `info`, or a registered name, as of your own rules; a
            wrapper around a name, such as `"moving_average(lars)"`, at any depth; a configuration,
            from `keras.optimizers.serialize` or `{"class_name": "LARS", "config": {...}}`; or a
            `keras.optimizers.Optimizer`, which is returned.
        **arguments: Arguments of the constructors. With wrappers, each is passed to the outermost
            optimizer that takes it.

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
    classes = _classes_in(identifier)
    given = _taken_by(classes, arguments, identifier)
    made: list[Any] = []
    for cls, own in zip(reversed(classes), reversed(given), strict=True):
        try:
            inspect.signature(cls).bind(*made, **own)
        except TypeError as error:
            raise TypeError(f"{path(cls)}: {error}. Received: {identifier!r}, {own}") from None
        made = [cls(*made, **own)]
    return made[0]


def _classes_in(identifier: Any) -> list[type]:
    """Return the class of a name, or those of a name like "outer(inner)", the outermost first."""
    if isinstance(identifier, type):
        names: Sequence[Any] = [identifier]
    elif isinstance(identifier, str):
        names = nested(identifier)
        if not all(names or [""]):
            raise ValueError(
                "Argument `identifier` must be a name, or wrappers around one in the form "
                f"'outer(inner)'. Received: {identifier!r}"
            )
    else:
        raise TypeError(
            "Argument `identifier` must be a name, a configuration or an optimizer. Received: "
            f"{identifier!r}"
        )
    classes = [_class_of(name) for name in names]
    for outer in classes[:-1]:
        if "inner_optimizer" not in inspect.signature(outer).parameters:
            raise ValueError(
                f"{outer.__name__} goes around no other optimizer. Received: {identifier!r}"
            )
    return classes


def _class_of(name: Any) -> type:
    """Return the class of a name as in `info`, or of a name under which Keras has registered it."""
    registered = keras.saving.get_registered_object(name) if isinstance(name, str) else None
    if inspect.isclass(registered) and issubclass(registered, keras.optimizers.Optimizer):
        return registered
    return _classes()[_known(name)]


def _taken_by(
    classes: Sequence[type], arguments: Mapping[str, Any], identifier: Any
) -> list[dict[str, Any]]:
    """Return the arguments of each class: the first one that takes an argument is given it."""
    given: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in arguments.items():
        takers = [own for own, cls in zip(given, classes, strict=True) if name in _parameters(cls)]
        if not takers:
            allowed = sorted({p for cls in classes for p in _parameters(cls)})
            raise TypeError(
                f"{identifier!r} takes the arguments {allowed}. Received: {name!r}. "
                f"{did_you_mean(name, allowed) if nearest(name, allowed) else ''}".rstrip()
            )
        takers[0][name] = value
    return given


def _parameters(cls: type) -> list[str]:
    """Return the names of all arguments, including options, without the optimizer inside."""
    return [name for name in all_arguments(cls) if name != "inner_optimizer"]


# The base class of optimizers over workers, and a class that only divides state over workers.
_NO_ALGORITHMS = (distributed.OverWorkers, distributed.ShardedState)


def _classes() -> dict[str, type]:
    """Return every optimizer class by name: that of its file, or `keras.` and that of Keras."""
    found = {}
    for module in (rules, wrappers, distributed):
        for cls in vars(module).values():
            is_optimizer = inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)
            if is_optimizer and cls not in _NO_ALGORITHMS:
                found[cls.__module__.rsplit(".", 1)[-1]] = cls
    found["loss_scale_optimizer"] = LossScaleOptimizer
    stock = keras_optimizers()
    found |= {f"keras.{name}": stock[name] for name in stock.keys() - _AROUND_OTHERS}
    return dict(sorted(found.items()))


def _known(name: Any) -> str:
    """Return the name in `list_optimizers` of an optimizer, given by any name, class or itself."""
    classes = _classes()
    if isinstance(name, keras.optimizers.Optimizer):
        name = type(name)
    if isinstance(name, type):
        # On PyTorch, Keras makes its optimizers of subclasses of the public classes.
        same = name.__mro__ if name.__module__.startswith("keras.") else (name,)
        for known, cls in classes.items():
            if cls in same:
                return known
        elsewhere = ("keras_tfopt.legacy", "keras_tfopt.addons")
        name = name.__name__ if name.__module__.startswith(elsewhere) else name
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
    """Return the patterns of an argument; a text without `*` and `?` becomes a known name."""
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
    plain = name.removeprefix("keras.")
    names = {name, plain, plain.replace("_", "")}  # the last as classes are spelled
    return any(fnmatch.fnmatchcase(one, pattern.lower()) for one in names for pattern in patterns)


def _originals(name: str, cls: type) -> tuple[str, ...]:
    if name.startswith("keras."):
        return (f"keras.optimizers.{cls.__name__}",)
    counterparts = _counterparts()
    found = [
        f"{row.source}.{old}" for old, row in TABLE.items() if counterparts[old] == cls.__name__
    ]
    found += [f"{ADDONS}.{old}" for old, row in ADDONS_TABLE.items() if row.ours == cls.__name__]
    return tuple(found)


def _counterparts() -> dict[str, str]:
    """Return the name of our class for each original: the same name if we have it."""
    public = {**vars(rules), **vars(wrappers), **vars(distributed)}
    return {
        old: plain if (plain := old.removesuffix("Optimizer")) in public else row.ours
        for old, row in TABLE.items()
    }


def _where_to_compare(cls: type) -> str:
    """Return where to read how an optimizer of Keras differs from ours of the same name."""
    for name, other in _classes().items():
        if "." not in name and other.__name__.lower() == cls.__name__.lower():
            return f"from `keras_tfopt.{other.__name__}`: see `keras_tfopt.info({name!r})`."
    return ""
