"""The contract of an algorithm: slots, scalars once per step, one pure rule."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar

import keras

from keras_tfopt.execution import (
    Engine,
    Like,
    Slot,
    as_schedule,
    changes,
    check_savable,
    decoded,
    encoded,
    is_function_of_step,
    is_variable,
    own_parameters,
)

PACKAGE = "keras_tfopt"
SCOPES = ("element", "variable", "model")
SPARSE = ("dense", "rows", "move_rows")
Registered = TypeVar("Registered")


class Algorithm(Engine):
    """Base class of all optimizers of this package, and of your own.

    A subclass says what state it keeps and what one step does to one variable. The engine does the
    rest on every backend: row gradients, clipping, weight decay, accumulation, loss scaling,
    averages, half precision, compilation, saving.

    ```python
    @keras_tfopt.register
    class SignDescent(keras_tfopt.Algorithm):
        sparse = "rows"

        def __init__(self, learning_rate=0.001, beta=0.9, **base):
            super().__init__(learning_rate, **base)
            self.beta = keras_tfopt.check_number("beta", beta, 0, 1, right_open=True)

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
        row_variables: Regular expression, or list of them, searched in the paths of variables;
            where it matches, rows without gradient are left alone (modes "rows" and "move_rows").
            The default is the table of `keras.layers.Embedding`; None is no variable.
        master_weights: Keep a float32 copy of half-precision variables as a slot, so that updates
            below one unit in the last place add up. Slots and arithmetic are float32 in any case.
        maximize: Whether to step up the gradient instead of down. Weight decay still shrinks
            variables.
        **base: `name`, `weight_decay` (decoupled: `x -= learning_rate * weight_decay * x` before
            the update; in touched rows only, if the update is), `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor`, `gradient_accumulation_steps`: see `keras.optimizers.Optimizer`.
    """

    def __init_subclass__(cls, **kwargs: Any):
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

        Variables with equal facts share compiled code, so say no more than the rule asks.
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
        config["row_variables"] = encoded(self.row_variables)
        config["master_weights"] = self.master_weights
        if self.maximize:
            config["maximize"] = True
        if self._no_decay_patterns:
            config["no_weight_decay"] = list(self._no_decay_patterns)
        for name, value in self.hyperparameters().items():
            check_savable(name, value)
            config[name] = encoded(value, name)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Algorithm:
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
        like: What `Algorithm.slots` is given: `shape`, `dtype` and `path` of a variable.
    """
    return full(like, 0.0)


def full(like: Like, value: float) -> Slot:
    """A slot of the variable's shape that starts at `value`.

    Args:
        like: What `Algorithm.slots` is given: `shape`, `dtype` and `path` of a variable.
        value: Number.
    """
    return Slot(like.shape, value)


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    left_open: bool = False,
    right_open: bool = False,
) -> float:
    """Returns `value` as a float, or raises an error that names the argument and its range.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.

    Raises:
        TypeError: if `value` is no number.
        ValueError: if it is out of range, or not finite.

    Example:

    >>> keras_tfopt.check_number("beta", 1.0, 0, 1, right_open=True)
    ValueError: Argument `beta` must be a number in [0, 1). Received: 1.0
    """
    left, right = "(" if left_open or low == -math.inf else "[", ")"
    if not right_open and high != math.inf:
        right = "]"
    allowed = f"a number in {left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be {allowed}. Received: {value!r}")
    value = float(value)
    above = value > low if left_open else value >= low
    below = value < high if right_open else value <= high
    if not (above and below and math.isfinite(value)):
        raise ValueError(f"Argument `{name}` must be {allowed}. Received: {value!r}")
    return value


def check_hyperparameter(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    left_open: bool = False,
    right_open: bool = False,
) -> Any:
    """`check_number`, but what gives a number at each step passes.

    That is a `keras.optimizers.schedules.LearningRateSchedule` or a function, called with the
    number of steps done; a scalar `keras.Variable`; or a function without arguments, which compiled
    steps read once.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed number. Defaults to none.
        high: Largest allowed number. Defaults to none.
        left_open: Whether `low` itself is refused.
        right_open: Whether `high` itself is refused.

    Raises:
        TypeError: if `value` is no number.
        ValueError: if it is out of range, or not finite.
    """
    value = as_schedule(value)
    if not changes(value):
        try:
            return check_number(name, value, low, high, left_open=left_open, right_open=right_open)
        except TypeError as error:
            also = ", a schedule, a scalar variable or a function of the step. Received:"
            raise TypeError(str(error).replace(". Received:", also)) from None
    if isinstance(value, keras.Variable) and tuple(value.shape) != ():
        raise ValueError(f"Argument `{name}` must be a scalar variable. Received: {value!r}")
    return value


def check_function_of_step(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    left_open: bool = False,
) -> Any:
    """`check_hyperparameter`, but a function of the number of the step passes as well."""
    if is_function_of_step(value):
        return value
    return check_hyperparameter(name, value, low, high, left_open=left_open)


def at_step(value: Any, step: Any) -> Any:
    """What such a hyperparameter is at step number `step`; for use in `scalars`."""
    return value(step) if is_function_of_step(value) else value


def check_global_step(value: Any) -> Any:
    """Returns `value`, or raises an error if it is neither None nor a variable that counts.

    Args:
        value: What was given as the argument `global_step`.

    Raises:
        TypeError: if it is neither None nor a scalar variable.
    """
    if value is not None and not (is_variable(value) and tuple(value.shape) == ()):
        raise TypeError(
            "Argument `global_step` must be None (the optimizer's own count) or a scalar "
            f"keras.Variable or tf.Variable. Received: {value!r}"
        )
    return value


def check_integer(name: str, value: Any, low: int) -> int:
    """Returns `value` as an integer, or raises an error that names the argument and its range.

    Args:
        name: Of the argument, for the error.
        value: What was given.
        low: Smallest allowed integer.

    Raises:
        TypeError: if `value` is no integer.
        ValueError: if it is less than `low`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `{name}` must be an integer >= {low}. Received: {value!r}")
    if value < low:
        raise ValueError(f"Argument `{name}` must be an integer >= {low}. Received: {value!r}")
    return int(value)


def check_bool(name: str, value: Any) -> bool:
    """Returns `value`, or raises an error that names the argument.

    Args:
        name: Of the argument, for the error.
        value: What was given.

    Raises:
        TypeError: if `value` is neither True nor False.
    """
    if not isinstance(value, bool):
        raise TypeError(f"Argument `{name}` must be True or False. Received: {value!r}")
    return value
