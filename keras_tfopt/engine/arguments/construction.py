"""Remember what an optimizer was constructed with, and make the `self` that its formulas see.

The formulas of a rule are methods of the optimizer's class. In a step their `self` is a second
instance of that class. It holds the attributes that the constructors of the rule have set, and
nothing of the optimizer: no variables, no iterations. So a formula may use properties, `super()`
and other methods on every backend, and compiled code keeps no state alive.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from keras_tfopt.engine.arguments import assignment
from keras_tfopt.engine.arguments.options import (
    changes,
    check_scalar,
    computing_again,
    current,
    named_parameters,
    own_parameters,
)

# What a constructor gets for an argument whose number is not known yet: most ranges have it.
_UNKNOWN = 0.5
# The attribute of a `self` of formulas that says whether attributes may be set, and its values.
_STATE, _OPEN, _FROZEN = "_formula_state", "open", "frozen"


class Constructed:
    """Remember the arguments of the outermost constructor, whichever constructors it calls."""

    _arguments: collections.UserDict[str, Any]
    """The given arguments by name, including those passed on by `**kwargs`."""
    _is_made = False
    """Whether the outermost constructor has ended."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check arguments together, or set attributes that follow from them.

        It is called once the arguments are set. Classes that declare their arguments override it.
        """

    def _saved_arguments(self) -> list[str]:
        """Return the names of the rule's own arguments that the constructor takes or passes on."""
        known = {*named_parameters(type(self).__init__), *self._arguments}
        return [name for name in own_parameters(type(self)) if name in known]


class Formulas(Constructed):
    """An optimizer whose methods are formulas: they see `self` as `formula` makes it."""

    _rule_attributes: tuple[str, ...] = ()
    """The attributes that the constructors of the rule have set."""
    _follows: tuple[str, ...] = ()
    """Those that a constructor computes from arguments which change with the steps."""

    def __setattr__(self, name: str, value: Any) -> None:
        state = vars(self).get(_STATE)
        if state is None:
            if self._is_made:
                value = assignment.checked(self, name, value)
            super().__setattr__(name, value)
            if name in self._rule_attributes and "_statics" in vars(self):
                self._statics.clear()  # compiled code has the earlier value
                self._fast.clear()
        elif state == _OPEN:
            object.__setattr__(self, name, value)
        else:
            raise TypeError(
                f"The formulas of {type(self).__name__} must not assign attributes: they run once "
                "for many steps where steps are compiled. Keep what changes in `slots`, and return "
                f"its new value from `update`. Assigned: self.{name}"
            )

    def __getattr__(self, name: str) -> Any:  # called only if there is no such attribute
        owner = f"{type(self).__name__!r} object has no attribute {name!r}"
        if _STATE not in vars(self):
            raise AttributeError(owner)
        lr = " The learning rate of the step is `t.lr`." if name == "learning_rate" else ""
        raise AttributeError(
            f"{owner}. A formula reads from `self` what the constructor has set there; scalars of "
            f"the step are in `t`, slots in `s`.{lr}"
        )

    def _finish(self) -> None:
        """Check what needs a complete optimizer; called at the end of the constructor."""

    def is_formula(self) -> bool:
        """Return whether this is the `self` of formulas, not an optimizer."""
        return _STATE in vars(self)

    def __reduce__(self) -> Any:
        """Return how to copy it: a formula by its attributes, an optimizer as Keras does."""
        if self.is_formula():
            return instance, (type(self), {**vars(self)})
        return super().__reduce__()

    def formula(self, values: Mapping[str, Any] | None = None) -> Any:
        """Return the `self` of formulas, with `values` for some of the arguments.

        Attributes that a constructor computes from these arguments follow them.
        """
        values = values or {}
        follows = bool(values) and self._follows
        return self.with_attributes({**(self._following(values) if follows else {}), **values})

    def with_attributes(self, values: Mapping[str, Any]) -> Any:
        """Return the `self` of formulas with other values of attributes, and of these only."""
        attributes = {name: getattr(self, name) for name in self._rule_attributes}
        attributes["_rule_attributes"] = self._rule_attributes
        if self._follows:
            attributes.update(_arguments=self._arguments, _follows=self._follows)
        return instance(type(self), {**attributes, **values})

    def attributes_with(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes that differ if the constructor gets these arguments."""
        cls = type(self)
        if not has_constructor(cls) and cls.__post_init__ is Constructed.__post_init__:
            return dict(arguments)
        found = _attributes_of(cls, {**self._arguments, **arguments})
        return {
            name: value
            for name, value in found.items()
            if name in arguments or repr(value) != repr(getattr(self, name, None))
        }

    def _following(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes that the constructor computes from the arguments of this step."""
        try:
            found = _attributes_of(type(self), {**self._arguments, **values})
        except Exception as error:
            raise TypeError(
                f"{type(self).__name__}.__init__ computes {list(self._follows)} from "
                f"{sorted(values)}, which change from step to step and have no values while a step "
                "is compiled. Make what is computed a property, or check arguments by "
                f"`keras_tfopt.check_hyperparameter`, which knows of that. The error was: {error}"
            ) from error
        return {name: found[name] for name in self._follows}


def has_constructor(cls: type) -> bool:
    """Return whether the constructor of a class is written by hand, not made from its fields."""
    for base in cls.__mro__:
        if "is_engine" in vars(base):  # an engine, which all classes of users derive from
            return False
        if "__init__" in vars(base):
            return not hasattr(vars(base)["__init__"], "fields")
    return False


def instance(cls: type, attributes: Mapping[str, Any], state: str = _FROZEN) -> Any:
    """Return an instance of a class of optimizers that holds these attributes and no state."""
    rule: Any = object.__new__(cls)
    vars(rule).update(attributes, **{_STATE: state})
    return rule


def _attributes_of(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that the constructors of a rule set, given these arguments."""
    rule = instance(cls, {}, _OPEN)
    with computing_again():
        rule.__init__(**arguments)
    return {name: value for name, value in vars(rule).items() if name != _STATE}


def _remembering(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor such that it remembers its arguments if it is the outermost one."""

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_arguments" in vars(self) or _STATE in vars(self):
            constructor(self, *args, **kwargs)
            return
        arguments = _by_name(constructor, self, args, kwargs)
        # Keras looks for optimizers in all dictionaries: it would load one inside a second time.
        object.__setattr__(self, "_arguments", collections.UserDict(arguments))
        changing = _changing_arguments(self, arguments)
        if not changing:
            constructor(self, *args, **kwargs)
        else:  # an ordinary constructor computes with numbers, not with schedules
            numbers_now = {name: _number_now(value) for name, value in changing.items()}
            known = {name: number for name, number in numbers_now.items() if number is not None}
            start = {**dict.fromkeys(changing, _UNKNOWN), **known}
            with contextlib.nullcontext() if known == start else computing_again():
                constructor(self, **{**arguments, **start})
            follows = _depends(type(self), arguments, start)
            for name, value in changing.items():
                setattr(self, name, value)
            object.__setattr__(self, "_follows", follows)
        if isinstance(self, Formulas):
            # `weight_decay` belongs to the engine, unless it is an argument of the rule itself.
            of_engine = self._engine_attributes.difference(own_parameters(type(self)))
            # On TensorFlow, an argument that is the default of its class is not among `vars`.
            names = dict.fromkeys([*getattr(type(self), "_fields", ()), *vars(self)])
            own = tuple(name for name in names if name not in of_engine)
            object.__setattr__(self, "_rule_attributes", own)
            self._finish()
        object.__setattr__(self, "_is_made", True)

    return construct


def _by_name(
    constructor: Callable[..., None], self: Any, args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name; none if they do not fit, as the call then fails."""
    try:
        bound = inspect.signature(constructor).bind(self, *args, **kwargs)
    except TypeError:
        return {}
    _, *parameters = bound.signature.parameters.values()
    given = dict(list(bound.arguments.items())[1:])
    for parameter in parameters:
        if parameter.kind == inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return given


def _changing_arguments(optimizer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the rule's own arguments that change with the steps, if a constructor uses them."""
    cls = type(optimizer)
    if not isinstance(optimizer, Formulas):
        return {}
    if not has_constructor(cls) and cls.__post_init__ is Constructed.__post_init__:
        return {}  # nothing computes with them
    own = set(own_parameters(cls)) - {"learning_rate", "global_step"}
    changing = {n: v for n, v in arguments.items() if n in own and changes(v)}
    for name, value in changing.items():
        check_scalar(name, value)
        if name in cls._fields:  # whose own checks get the number that it is now
            cls._fields[name].check(name, value)
    return changing


def _number_now(value: Any) -> float | None:
    """Return a changing argument at the start; None while a graph or a compiled step is made."""
    try:
        return float(ops.convert_to_numpy(current(value, 0)))
    except (NotImplementedError, TypeError):
        return None


def _depends(cls: type, arguments: dict[str, Any], start: dict[str, float]) -> tuple[str, ...]:
    """Return the names of attributes that a constructor computes from changing arguments."""
    first = _attributes_of(cls, {**arguments, **start})
    # Other numbers from the same ranges: a thousandth of the way to one between 0 and 1.
    near = {name: value + 1e-3 * (0.37 - value) for name, value in start.items()}
    second = _attributes_of(cls, {**arguments, **near})
    differ = [n for n in first if n not in start and repr(first[n]) != repr(second.get(n))]
    for name in differ:
        if isinstance(first[name], (list, tuple, dict)):
            raise TypeError(
                f"{cls.__name__}.__init__ puts numbers that change from step to step into a "
                f"{type(first[name]).__name__}. Make it a property, which is computed in each "
                f"step. Received: {sorted(start)} that change, which `self.{name}` depends on"
            )
    return tuple(n for n in differ if isinstance(first[n], numbers.Number))
