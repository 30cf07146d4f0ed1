"""Arguments of rules and wrappers as annotated fields, and the constructor made from them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar

from typing_extensions import dataclass_transform

from keras_tfopt.checks import check_bool, check_hyperparameter, check_integer, check_number
from keras_tfopt.engine import has_constructor

REQUIRED = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Field:
    """An argument: its default, or `REQUIRED`, and the function that checks a value."""

    default: Any
    check: Callable[[str, Any], Any]
    may_change: bool = False
    """Whether it may be something that gives a number in each step."""


def within(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    default: Any = REQUIRED,
    left_open: bool = False,
    right_open: bool = False,
    fixed: bool = False,
) -> Any:
    """Declare an argument that is a number.

    Args:
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        default: Its default. If that is None, None is allowed. Without a default, the argument is
            required.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.
        fixed: Whether it must be a number. Otherwise it may also be something that gives a number
            in each step: a schedule, a scalar variable or a callable without arguments.
    """
    how = {"left_open": left_open, "right_open": right_open}
    check = check_number if fixed else check_hyperparameter
    field = _field_of(lambda name, value: check(name, value, low, high, **how), default)
    return dataclasses.replace(field, may_change=not fixed)


def integer(low: int, *, default: Any = REQUIRED) -> Any:
    """Declare an argument that is an integer.

    Args:
        low: Smallest allowed integer. The largest is 2**31 - 1, to which steps are counted.
        default: Its default, as of `within`.
    """
    return _field_of(lambda name, value: check_integer(name, value, low), default)


def flag(*, default: bool) -> Any:
    """Declare an argument that is True or False.

    Args:
        default: Its default.
    """
    return Field(default, check_bool)


def field(check: Callable[[str, Any], Any], *, default: Any = REQUIRED) -> Any:
    """Declare an argument with a check of your own.

    Args:
        check: Function of the argument's name and value that returns the value, or raises an error.
        default: Its default, which is not checked. Without a default, the argument is required.
    """
    return Field(default, lambda name, value: value if value is default else check(name, value))


def _field_of(check: Callable[[str, Any], Any], default: Any) -> Field:
    optional = default is None
    return Field(default, lambda n, value: None if optional and value is None else check(n, value))


@dataclass_transform(field_specifiers=(within, integer, flag, field))
class Fielded:
    """Make constructors from fields. The decorator shows them to type checkers and editors."""

    _fields: ClassVar[Mapping[str, Field]] = {}
    _first_default: ClassVar[Any] = REQUIRED
    _options: ClassVar[Mapping[str, Any]] = {}
    """Options that the engine takes by `**base`, with defaults, for the signature."""

    def __init_subclass__(cls, **kwargs: Any):
        declares = _take_fields(cls)
        if not has_constructor(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        elif declares:
            raise TypeError(
                f"{cls.__name__} declares {declares} as arguments, and its __init__ is written by "
                "hand. Either replace `__init__` by `__post_init__(self)`, which runs after the "
                "arguments are set, or let `__init__` take and keep them"
            )
        super().__init_subclass__(**kwargs)


def _engine_of(cls: type) -> Any:
    """Return the engine of a class, to whose constructor the fields are added."""
    return next(base for base in cls.__mro__ if "is_engine" in vars(base))


def _take_fields(cls: type[Fielded]) -> list[str]:
    """Collect the arguments that a class declares, and set its attributes to the defaults."""
    own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
    for name, inherited in cls._fields.items():
        if name in vars(cls) and name not in own and not isinstance(vars(cls)[name], property):
            own[name] = dataclasses.replace(inherited, default=vars(cls)[name])
    _check_names(cls, own)
    cls._fields = {**cls._fields, **own}
    for name, declared in own.items():
        if declared.default is REQUIRED:
            delattr(cls, name)
        else:
            setattr(cls, name, declared.default)
    if "learning_rate" not in vars(cls) or isinstance(vars(cls)["learning_rate"], property):
        return list(own)
    cls._first_default = vars(cls)["learning_rate"]
    delattr(cls, "learning_rate")  # where Keras has a property
    return ["learning_rate", *own]


def _check_names(cls: type[Fielded], names: Iterable[str]) -> None:
    """Raise an error for arguments that have the name of something that all optimizers have."""
    base = next(one for one in cls.__mro__ if Fielded in one.__bases__)
    for name in names:
        # All optimizers have it as None: `AdamGS` and others take it as an argument.
        if hasattr(base, name) and name != "global_step":
            raise TypeError(
                f"{cls.__name__} must call its argument {name!r} something else: each optimizer "
                f"has an attribute `{name}`, which the argument would replace"
            )


def _is_annotated(cls: type, name: str) -> bool:
    """Return whether a class, or one that it derives from below the engine, annotates a name."""
    engine = cls.__mro__.index(_engine_of(cls))
    return any(name in inspect.get_annotations(one) for one in cls.__mro__[:engine])


def _constructor(cls: type[Fielded]) -> Callable[..., None]:
    """Return the constructor of a class that declares its arguments.

    The first argument is that of the engine. The fields follow, then other arguments of the engine.
    """
    fields, default = cls._fields, cls._first_default
    start = _engine_of(cls).__init__
    _, first, *others = inspect.signature(start).parameters.values()
    others = [p for p in others if p.kind == p.POSITIONAL_OR_KEYWORD]
    names = [first.name, *fields, *(p.name for p in others)]
    _check_order(cls, {first.name: default, **{n: f.default for n, f in fields.items()}})

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        _add_positional(cls, names, args, given)
        own = {name: given.pop(name, declared.default) for name, declared in fields.items()}
        if default is not REQUIRED:
            given.setdefault(first.name, default)
        if first.name not in given:
            raise TypeError(f"{cls.__name__} needs the argument `{first.name}`")
        _refuse_attributes(cls, given, {*names, *cls._options})
        start(self, **given)
        for name, declared in fields.items():
            if own[name] is REQUIRED:
                raise TypeError(f"{cls.__name__} needs the argument `{name}`")
            setattr(self, name, declared.check(name, own[name]))
        self.__post_init__()

    __init__.fields = tuple(names)  # type: ignore[attr-defined]
    __init__.__signature__ = _signature(cls, first, others)  # type: ignore[attr-defined]
    return __init__


def _add_positional(
    cls: type, names: Sequence[str], args: Sequence[Any], given: dict[str, Any]
) -> None:
    """Add positional arguments to those that are given by name."""
    if len(args) > len(names):
        raise TypeError(
            f"{cls.__name__} takes at most {len(names)} positional arguments: {names}. "
            f"Received: {len(args)}"
        )
    for name, value in zip(names, args, strict=False):
        if name in given:
            raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
        given[name] = value


def _refuse_attributes(cls: type, given: Mapping[str, Any], arguments: Set[str]) -> None:
    """Raise an error for arguments that are only annotated attributes of the class."""
    for name in given.keys() - arguments:
        if _is_annotated(cls, name):
            raise TypeError(
                f"{cls.__name__} has no argument {name!r}, only an attribute of that name. An "
                f"argument is declared as in `{name}: float = keras_tfopt.within(default=1)`, "
                f"or by integer, flag or field. Received: {name}={given[name]!r}"
            )


def _check_order(cls: type, defaults: Mapping[str, Any]) -> None:
    """Raise an error if an argument without a default follows one with a default.

    Python itself does so for constructors that are written by hand.
    """
    before = None
    for name, default in defaults.items():
        if default is not REQUIRED:
            before = name
        elif before is not None:
            raise TypeError(
                f"{cls.__name__} must give its argument {name!r} a default, as in "
                f"`within(0, 1, default=0.9)`, since {before!r} before it has one"
            )


def _signature(
    cls: type[Fielded], first: inspect.Parameter, others: Sequence[inspect.Parameter]
) -> inspect.Signature:
    """Return the signature that users see, with the options of the engine.

    Args:
        cls: The class with fields.
        first: The first argument of the engine's constructor.
        others: Those after the fields.
    """
    kind, fields = inspect.Parameter, cls._fields
    options = {n: d for n, d in cls._options.items() if n not in fields}
    shown = [kind(n, kind.POSITIONAL_OR_KEYWORD, default=f.default) for n, f in fields.items()]
    return inspect.Signature(
        [
            kind("self", kind.POSITIONAL_OR_KEYWORD),
            first.replace(default=cls._first_default),
            *shown,
            *others,
            *(kind(n, kind.KEYWORD_ONLY, default=d) for n, d in options.items()),
            *([] if options else [kind("base", kind.VAR_KEYWORD)]),
        ]
    )
