"""What a rule is: hyperparameters as fields, slots, scalars once per step, one pure formula."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import keras
from typing_extensions import dataclass_transform

from keras_tfopt.checks import check_bool, check_hyperparameter, check_integer, check_number
from keras_tfopt.execution import (
    DEFAULTS,
    Engine,
    Like,
    Slot,
    check_savable,
    decoded,
    encoded,
    has_constructor,
    own_parameters,
)

PACKAGE = "keras_tfopt"
OPTIONS: dict[str, Any] = {"name": None, **DEFAULTS}
SCOPES = ("element", "variable", "model")
SPARSE = ("dense", "rows", "move_rows")
Registered = TypeVar("Registered")


@dataclasses.dataclass(frozen=True)
class Field:
    """A hyperparameter of a rule: its default, and what checks a value for it."""

    default: Any
    check: Callable[[str, Any], Any]


def within(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    default: float,
    left_open: bool = False,
    right_open: bool = False,
    fixed: bool = False,
) -> Any:
    """Declare a hyperparameter of a `Rule` that is a number.

    Args:
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        default: Its default.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.
        fixed: Whether it must be a number. Otherwise it may also be what gives a number in each
            step: a schedule, a scalar variable or a callable without arguments.
    """
    how = {"left_open": left_open, "right_open": right_open}
    check = check_number if fixed else check_hyperparameter
    return Field(default, lambda name, value: check(name, value, low, high, **how))


def integer(low: int, *, default: int) -> Any:
    """Declare a hyperparameter of a `Rule` that is an integer.

    Args:
        low: Smallest allowed integer.
        default: Its default.
    """
    return Field(default, lambda name, value: check_integer(name, value, low))


def flag(*, default: bool) -> Any:
    """Declare an argument of a `Rule` that is True or False.

    Args:
        default: Its default.
    """
    return Field(default, check_bool)


def field(check: Callable[[str, Any], Any], *, default: Any) -> Any:
    """Declare an argument of a `Rule` with a check of your own.

    Args:
        check: Function of the argument's name and value that returns the value, or raises an error.
        default: Its default, which is not checked.
    """
    return Field(default, lambda name, value: value if value is default else check(name, value))


@dataclass_transform(field_specifiers=(within, integer, flag, field))
class _Fielded:
    """Tells type checkers and editors that annotated attributes are arguments."""


class Rule(Engine, _Fielded):
    """Base class of all optimizers of this package, and of your own.

    A subclass declares its hyperparameters, says what state it keeps, and what one step does to one
    variable. The engine does the rest on every backend: row gradients, clipping, weight decay,
    accumulation, loss scaling, averages, half precision, compilation, saving.

    ```python
    @keras_tfopt.register
    class SignDescent(keras_tfopt.Rule):
        sparse = "rows"
        learning_rate: float = 0.001
        beta: float = keras_tfopt.within(0, 1, default=0.9, right_open=True)

        def slots(self, like):
            return {"m": keras_tfopt.zeros(like)}

        def update(self, g, x, s, t):
            m = self.beta * s.m + (1 - self.beta) * g
            return x - t.lr * ops.sign(m), {"m": m}
    ```

    Class attributes:
        scope: What one call of `update` must see. "element": any piece of variables, flattened, so
            the rule may use elementwise operations only. "variable": one variable in its shape.
            "model": all variables at once, as vectors of all their entries in the order of
            `build`. Then `slots` gets a list of likes and describes state of all variables
            together, in which None stands for the number of entries; what must be known of all
            entries comes from `sums` and `solve`, and `update` sees all entries or a piece of
            them. A variable without gradient takes part with zeros and stays as it is, and row
            gradients are made dense.
        sparse: What a row gradient does. "dense": the same as the dense gradient with zeros in the
            other rows. "rows": only touched rows of the variable and of the slots change.
            "move_rows": all rows of the slots change, the variable only in touched rows.
            A rule for which that holds in some variables only defines `takes_rows(like)`.
        flat: With scope "variable": the rule uses elementwise operations and `t.norm` only, so that
            it can run over many variables laid end to end.
        fused: Whether compiling the rule as a whole makes it faster; False for rules that
            decompose matrices, which XLA does slowly on a CPU.
        second_order: Whether the rule multiplies gradients by more than a diagonal matrix, for
            `keras_tfopt.list_optimizers`.
        needs_finite: Whether a gradient with NaN or infinity would spoil the state for good, so
            that eager steps refuse it.

    Touched rows are those that a `RowGradient` names, or that were looked up in a
    `keras_tfopt.layers.Embedding`. Other gradients, whatever their form, touch the rows in which
    they are not zero, if the variable's path matches `row_variables`; other variables get dense
    updates.

    Args:
        learning_rate: Number >= 0, `keras.optimizers.schedules.LearningRateSchedule`, function of
            the number of steps done (a float, 0 at the first step), or function without arguments
            (read once when a step is compiled).
        row_variables: Variables in which rows without gradient are left alone (modes "rows" and
            "move_rows"): regular expressions that are searched in their paths, variables, or
            functions of a variable, one or a list. The default is the table of
            `keras.layers.Embedding`; None is no variable.
        master_weights: Keep a float32 copy of half-precision variables as a slot, so that updates
            below one unit in the last place add up. Slots and arithmetic are float32 in any case.
        maximize: Whether to step up the gradient instead of down. Weight decay still shrinks
            variables.
        **base: `name`, `weight_decay` (decoupled: `x -= learning_rate * weight_decay * x` before
            the update; in touched rows only, if the update is), `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor`, `gradient_accumulation_steps`: see `keras.optimizers.Optimizer`.
    """

    if TYPE_CHECKING:
        learning_rate: Any
        _: dataclasses.KW_ONLY
        name: str | None = None
        weight_decay: float | None = None
        clipnorm: float | None = None
        clipvalue: float | None = None
        global_clipnorm: float | None = None
        use_ema: bool = False
        ema_momentum: float = 0.99
        ema_overwrite_frequency: int | None = None
        loss_scale_factor: float | None = None
        gradient_accumulation_steps: int | None = None
        row_variables: Any = r"(^|/)embeddings$"
        master_weights: bool = False
        maximize: bool = False

    _fields: Mapping[str, Field] = {}
    _default_rate: Any = inspect.Parameter.empty

    def __init_subclass__(cls, **kwargs: Any):
        declares = _take_fields(cls)
        if not has_constructor(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        elif declares:
            raise TypeError(
                f"{cls.__name__} declares {declares} as arguments, and its __init__ is written by "
                "hand. Either write `__post_init__(self)`, which runs once they are set, in the "
                "place of `__init__`; or let `__init__` take and keep them"
            )
        super().__init_subclass__(**kwargs)
        cls._own_weight_decay = "weight_decay" in own_parameters(cls)
        for name, allowed in (("scope", SCOPES), ("sparse", SPARSE)):
            value = getattr(cls, name)
            if value not in allowed:
                raise ValueError(
                    f"Class attribute `{name}` of {cls.__name__} must be one of {allowed}. "
                    f"Received: {value!r}"
                )

    def slots(self, like: Any) -> dict[str, Slot]:
        """State for a variable of shape `like.shape`, dtype `like.dtype` and path `like.path`.

        Returns:
            `Slot` descriptions by name; see `zeros` and `full`.
        """
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Scalars that are the same for all variables, computed once per step.

        Args:
            lr: Learning rate of this step, a scalar tensor.
            step: Number of this step as a floating-point scalar tensor, 1 at the first.

        Returns:
            Scalars by name; the rule finds them in `t`, beside `t.step`.
        """
        return {"lr": lr}

    def facts(self, path: str) -> dict[str, Any]:
        """Static facts about a variable that a rule of scope "variable" finds in `t`, by name.

        Variables with equal facts share compiled code, so say no more than the rule asks. A rule
        that looks at shapes, too, defines `facts_of(like)` in its place.
        """
        return {"path": path}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """The rule. It must be pure, and read nothing but hyperparameters from `self`.

        Args:
            g: Gradient, a dense tensor, in float32 or float64.
            x: Variable, of the same shape and dtype.
            s: Slots, as attributes by name.
            t: Scalars, as attributes by name; also `t.rows` (bool: the call sees only touched
                rows), `t.touched` (the mask of touched rows, to broadcast, where the call sees all
                rows but only those move; else None), `t.norm` (function: the Euclidean norm of a
                whole variable, to broadcast against it) and, with scope "variable", the `facts` of
                the variable; with scope "model", what `sums` and `solve` return.

        Returns:
            The new variable and a dictionary of new slots; slots left out stay as they are. A slot
            that changes in one row only may be given as `Rows(index, value)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `update(self, g, x, s, t)`.")

    def sums(self, g: Any, s: Any, t: Any) -> dict[str, Any]:
        """With scope "model": what must be known of all entries, as small tensors by name.

        Called with all entries or a piece of them (`g` and those slots that have entries); what it
        returns for the pieces is added up. It must be a sum over entries, then.
        """
        return {}

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """With scope "model": called once per step, between `sums` and `update`.

        Args:
            s: The slots without entries, as attributes by name.
            t: Scalars and sums, as attributes by name.

        Returns:
            Small tensors by name, for `update` to find in `t`, and new values of slots without
            entries.
        """
        return {}, {}

    def hyperparameters(self) -> dict[str, Any]:
        """The algorithm's own arguments: everything that `update` may read from `self`."""
        names = [name for name in own_parameters(type(self)) if name != "learning_rate"]
        for name in names:
            if not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__}.__init__ must keep each of its arguments under its own "
                    f"name, as in `self.{name} = {name}`. Not kept: {name!r}"
                )
        return {name: getattr(self, name) for name in names}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, serializable."""
        config = super().get_config()
        check_savable("row_variables", self.row_variables)
        config["row_variables"] = encoded(self.row_variables)
        config["master_weights"] = self.master_weights
        if self.maximize:
            config["maximize"] = True
        if self._no_decay_patterns:
            config["no_weight_decay"] = encoded(self._no_decay_patterns)
        hyperparameters = self.hyperparameters()
        for name in self._saved_arguments():
            if name not in hyperparameters:  # the learning rate, which Keras has saved
                continue
            value = hyperparameters[name]
            check_savable(name, value)
            config[name] = encoded(value, name)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Rule:
        """The optimizer that `get_config` described."""
        own = own_parameters(cls)
        config = {
            name: decoded(value, custom_objects if name in own else None)
            for name, value in config.items()
        }
        if isinstance(config.get("global_step"), dict):
            raise ValueError(
                f"This {cls.__name__} counts its steps in a variable, which its configuration "
                "cannot hold. Put the variable in its place: "
                f"{cls.__name__}.from_config({{**config, 'global_step': variable}}). "
                f"Received: global_step={config['global_step']!r}"
            )
        excluded = config.pop("no_weight_decay", None)
        optimizer = super().from_config(config, custom_objects=custom_objects)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer


Algorithm = Rule
"""The earlier name of `Rule`."""


def _take_fields(cls: type[Rule]) -> list[str]:
    """Collect what a class declares as arguments, and leave the defaults as its attributes."""
    own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
    for name, inherited in cls._fields.items():
        if name in vars(cls) and name not in own and not isinstance(vars(cls)[name], property):
            own[name] = Field(vars(cls)[name], inherited.check)  # another default
    cls._fields = {**cls._fields, **own}
    for name, declared in own.items():
        setattr(cls, name, declared.default)
    if "learning_rate" not in vars(cls) or isinstance(vars(cls)["learning_rate"], property):
        return list(own)
    cls._default_rate = vars(cls)["learning_rate"]
    del cls.learning_rate  # where Keras has a property
    return ["learning_rate", *own]


def _constructor(cls: type[Rule]) -> Callable[..., None]:
    """Return the constructor of a class that declares its arguments."""
    fields, rate = cls._fields, cls._default_rate
    names = ["learning_rate", *fields]

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        if len(args) > len(names):
            raise TypeError(
                f"{cls.__name__} takes at most {len(names)} positional arguments: {names}. "
                f"Received: {len(args)}"
            )
        for name, value in zip(names, args, strict=False):
            if name in given:
                raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
            given[name] = value
        own = {name: given.pop(name, declared.default) for name, declared in fields.items()}
        if rate is not inspect.Parameter.empty:
            given.setdefault("learning_rate", rate)
        if "learning_rate" not in given:
            raise TypeError(f"{cls.__name__} needs the argument `learning_rate`")
        Engine.__init__(self, given.pop("learning_rate"), **given)
        for name, declared in fields.items():
            setattr(self, name, declared.check(name, own[name]))
        self.__post_init__()

    __init__.fields = tuple(fields)  # type: ignore[attr-defined]
    kind = inspect.Parameter
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            kind("self", kind.POSITIONAL_OR_KEYWORD),
            kind("learning_rate", kind.POSITIONAL_OR_KEYWORD, default=rate),
            *(kind(n, kind.POSITIONAL_OR_KEYWORD, default=f.default) for n, f in fields.items()),
            *(kind(n, kind.KEYWORD_ONLY, default=d) for n, d in OPTIONS.items() if n not in fields),
        ]
    )
    return __init__


def register(cls: Registered) -> Registered:
    """Decorator: lets `keras.saving` and `load_model` find a class or function by its name.

    Args:
        cls: A class of optimizers, or a function that is an argument of one. Its name has to be
            defined once: `"keras_tfopt>Name"` is what files have of it.
    """
    return keras.saving.register_keras_serializable(PACKAGE)(cls)


def zeros(like: Like) -> Slot:
    """A slot of the variable's shape that starts at zero.

    Args:
        like: What `Rule.slots` is given: `shape`, `dtype` and `path` of a variable.
    """
    return full(like, 0.0)


def full(like: Like, value: float) -> Slot:
    """A slot of the variable's shape that starts at `value`.

    Args:
        like: What `Rule.slots` is given: `shape`, `dtype` and `path` of a variable.
        value: Number.
    """
    return Slot(like.shape, value)
