"""What a function depends on besides its arguments: looked up, compared, and exchanged for tracers.

A step that is compiled once keeps what its function read at that time. This module finds what that
was: arrays, in places where others can be put, and everything else as a key that changes with it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from keras_tfopt.execution.options import own_parameters

Build = Callable[[list[Any]], Any]  # from arrays to a value that holds them

_SIMPLE = (bool, int, float, complex, str, bytes, np.generic, np.dtype, slice, range)
# Their functions read nothing that changes, or hold it in objects that are looked into.
_LIBRARIES = {"keras", "keras_tfopt", "jax", "jaxlib", "numpy", "ml_dtypes", "optree"}
_DICTIONARIES = ("dict", "OrderedDict", "TrackedDict")  # of users; others are caches


class Captured:
    """What a structure of arguments leads to, functions in it included.

    `arrays` are inputs of a compiled step, `key` is equal where all else is. A value that cannot be
    seen to change raises a TypeError.
    """

    def __init__(self, arguments: Any):
        self.arrays: list[Any] = []
        self._key: list[Any] = []
        # What the key knows by identity: as long as it lives, no other object gets that.
        self.kept: list[Any] = []
        self._alive: list[Any] = []  # the same for all that this walk has seen
        self._seen: dict[int, tuple[int, Build | None]] = {}
        self._classes: set[type] = set()  # of objects that this walk has seen
        self._places: list[tuple[Callable[[Any], None], Any, Build]] = []
        self._arguments = arguments
        self._build = self._walk(arguments, "the arguments", True)
        self.key = tuple(self._key)
        self._alive.clear()
        self._classes.clear()

    @contextlib.contextmanager
    def exchanged(self, arrays: list[Any]) -> Iterator[Any]:
        """The arguments, with other arrays in all places, until the end of the context."""
        built = [(put, old, build(arrays)) for put, old, build in self._places]
        try:
            for put, _, new in built:
                put(new)
            yield self._arguments if self._build is None else self._build(arrays)
        finally:
            for put, old, _ in built:
                put(old)

    def _walk(self, value: Any, where: str, strict: bool) -> Build | None:
        """Looks into a value; how to build it anew, or None if there is no need to."""
        if value is None or value is Ellipsis or isinstance(value, _SIMPLE):
            self._key.append((type(value).__name__, repr(value)))
            return None
        if id(value) in self._seen:
            number, build = self._seen[id(value)]
            self._key.append(("again", number))
            return build
        self._seen[id(value)] = len(self._seen), None
        self._alive.append(value)
        build = self._look_into(value, where, strict)
        self._seen[id(value)] = self._seen[id(value)][0], build
        return build

    def _look_into(self, value: Any, where: str, strict: bool) -> Build | None:
        if isinstance(value, (jax.Array, np.ndarray)) and value.dtype != object:
            number = len(self.arrays)
            self.arrays.append(value)
            weak = getattr(value, "weak_type", False)
            self._key.append(("array", number, tuple(value.shape), str(value.dtype), weak))
            return lambda arrays: arrays[number]
        if isinstance(value, keras.Variable):
            return self._same(value)
        if isinstance(value, (list, tuple)):
            return self._sequence(value, where, strict)
        if isinstance(value, dict) and (strict or type(value).__name__ in _DICTIONARIES):
            return self._mapping(value, where, strict)
        if isinstance(value, (set, frozenset)) and all(isinstance(v, _SIMPLE) for v in value):
            self._key.append((type(value).__name__, repr(sorted(value, key=repr))))
            return None
        if isinstance(value, functools.partial):
            return self._partial(value, where)
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, types.MethodType):
            self._key.append("method")
            self._unmoved(self._walk(value.__func__, where, strict), where)
            self._unmoved(self._walk(value.__self__, f"`self` of {where}", strict), where)
            return None
        if isinstance(value, types.BuiltinFunctionType) and not _is_method(value):
            return self._same(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._same(value)  # what functions read of it is looked up there
        return self._object(value, where, strict)

    def _same(self, value: Any) -> Build | None:
        self._key.append((type(value).__name__, id(value)))
        self.kept.append(value)
        return None

    def _unmoved(self, build: Build | None, where: str) -> None:
        if build is not None:
            raise _refusal(where, "an array in a place where no other can be put")

    def _sequence(self, value: Any, where: str, strict: bool) -> Build | None:
        self._key.append((type(value).__name__, len(value)))
        builds = [self._walk(v, f"{where}[{i}]", strict) for i, v in enumerate(value)]
        if not any(builds):
            return None
        pairs = list(zip(value, builds, strict=True))

        def build(arrays: list[Any]) -> Any:
            items = [v if b is None else b(arrays) for v, b in pairs]
            if isinstance(value, list):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)

        return build

    def _mapping(self, value: Any, where: str, strict: bool) -> Build | None:
        if not all(isinstance(key, _SIMPLE) for key in value):
            if strict:
                raise _refusal(where, "a dictionary with keys that are objects")
            return self._same(value)
        self._key.append((type(value).__name__, tuple(map(repr, value))))
        builds = {k: self._walk(v, f"{where}[{k!r}]", strict) for k, v in value.items()}
        if not any(builds.values()):
            return None
        return lambda arrays: {
            k: v if (b := builds[k]) is None else b(arrays) for k, v in value.items()
        }

    def _partial(self, value: Any, where: str) -> Build | None:
        parts = (value.func, value.args, value.keywords)
        build = self._walk(parts, where, True)
        if build is None:
            return None

        def built(arrays: list[Any]) -> Any:
            function, arguments, keywords = build(arrays)
            return functools.partial(function, *arguments, **keywords)

        return built

    def _function(self, function: Any, where: str) -> Build | None:
        where = f"`{function.__qualname__}`"
        if _is_known(function):
            return self._same(function)
        code = function.__code__
        self._key.append(("function", id(code)))
        self.kept.append(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a name that has no value yet
                self._at(
                    cell.cell_contents, functools.partial(setattr, cell, "cell_contents"),
                    f"`{name}` in {where}",
                )  # fmt: skip
        for name in ("__defaults__", "__kwdefaults__"):
            put = functools.partial(setattr, function, name)
            self._at(getattr(function, name), put, f"the defaults of {where}")
        names, attributes = _names(code)
        self._look_up(function.__globals__, names, attributes, where)
        return None

    def _look_up(
        self, space: dict[str, Any], names: Any, attributes: frozenset[str], where: str
    ) -> None:
        """What names in a module stand for."""
        for name in sorted(names):
            if name not in space:
                continue
            value = space[name]
            if isinstance(value, types.ModuleType) and not _is_known(value):
                self._look_up(vars(value), attributes, attributes, f"`{name}` in {where}")
            put = functools.partial(space.__setitem__, name)
            self._at(value, put, f"`{name}` in {where}")

    def _at(self, value: Any, put: Callable[[Any], None], where: str, strict: bool = True) -> None:
        """What stands in a place that can be written to."""
        build = self._walk(value, where, strict)
        if build is not None:
            self._places.append((put, value, build))

    def _class(self, cls: Any, makes: bool = True) -> Build | None:
        """Members of a class; what makes an instance of it only where one may be made."""
        self._same(cls)
        making = []
        for base in cls.__mro__:
            if _is_known(base):
                continue
            for name, member in vars(base).items():
                makes = makes or isinstance(member, classmethod)
                member = getattr(member, "__func__", member)  # of class methods and static ones
                member = member.fget if isinstance(member, property) else member
                if name in _MAKING:
                    making.append((base, name, member))
                    continue
                makes = makes or _may_make_its_like(member)
                self._member(base, name, member)
        if makes:
            for one in making:
                self._member(*one)
        return None

    def _member(self, base: Any, name: str, member: Any) -> None:
        if isinstance(member, types.FunctionType):
            self._walk(member, f"`{base.__name__}.{name}`", True)
        elif not name.startswith("__") and not hasattr(member, "__get__"):
            put = functools.partial(setattr, base, name)
            self._at(member, put, f"`{base.__name__}.{name}`", False)

    def _object(self, value: Any, where: str, strict: bool) -> Build | None:
        cls = type(value)
        if hasattr(value, "__next__"):
            raise _refusal(where, "an iterator, which a compiled step would not move on")
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            raise _refusal(where, "random numbers of NumPy; those of keras.random advance")
        if _is_known(cls) and _root(cls) not in _LIBRARIES and strict:
            raise _refusal(where, f"an object of class {cls.__name__}")
        # Those of a user's class are alike if all that they hold is.
        self._same(value if _is_known(cls) else cls)
        if cls not in self._classes:
            self._classes.add(cls)
            self._class(cls, makes=False)
        if isinstance(value, keras.optimizers.Optimizer):
            members = {name: getattr(value, name, None) for name in _options(cls)}  # type: ignore[arg-type]
        elif isinstance(value, _OF_KERAS) or not _is_known(cls):
            every = getattr(value, "__dict__", {}).items()
            members = {name: member for name, member in every if name not in _bookkeeping()}
        else:
            return None
        # What derives from a class of a library holds much that is of no consequence.
        own = strict and all(base is object or not _is_known(base) for base in cls.__mro__)
        for name, member in members.items():
            put = functools.partial(getattr(value, "__dict__", {}).__setitem__, name)
            self._at(member, put, f"`{name}` of {where}", own)
        return None


_MAKING = ("__init__", "__new__")
_OF_KERAS = (
    keras.Layer,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.schedules.LearningRateSchedule,
)


@functools.cache
def _options(cls: Any) -> list[str]:
    """What an optimizer was told, as names of attributes."""
    return ["_learning_rate", *(n for n in own_parameters(cls) if n != "learning_rate")]


@functools.cache
def _bookkeeping() -> frozenset[str]:
    """Attributes of layers that Keras keeps for itself."""
    return frozenset(vars(keras.Layer())) | frozenset(vars(keras.Sequential())) - {"_trainable"}


def _may_make_its_like(method: Any) -> bool:
    """Whether a method might make another instance of its class without the name of that."""
    if not isinstance(method, types.FunctionType):
        return False
    names, attributes = _names(method.__code__)
    return "type" in names or "__class__" in attributes


@functools.cache
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Global names and names of attributes that a function reads, those inside of it included."""
    names, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            more = _names(constant)
            names |= more[0]
            attributes |= more[1]
    return frozenset(names), frozenset(attributes)


def _is_method(function: Any) -> bool:
    """Whether a function that is written in C belongs to an object, which it may change."""
    owner = getattr(function, "__self__", None)
    return owner is not None and not isinstance(owner, types.ModuleType)


def _root(value: Any) -> str:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(name).partition(".")[0]


def _is_known(value: Any) -> bool:
    """Whether this comes with Python or one of the libraries underneath."""
    root = _root(value)
    if root == "__main__":
        return False
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _refusal(where: str, what: str) -> TypeError:
    return TypeError(
        f"`compiled=True` cannot see whether {where} changes from step to step. Received: {what}. "
        "Let the loss read arrays, numbers, models and functions, or leave `compiled` out"
    )
